//! The app: where figures come from, what is made of them, and what keys do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::error::Error;
use std::time::{Duration, Instant};
use tickwheel_prometheus::{Figures, LatenessFigures, PurgatoryFigures, TimerFigures};
use ureq::Agent;

/// A service that has not answered by then does not.
const MAX_TIME: Duration = Duration::from_secs(2);

/// The most that is read of an answer, in bytes: thousands of levels.
const MAX_ANSWER: u64 = 64 << 20;

/// Where a service tells its figures.
#[derive(Debug)]
pub(crate) struct Source {
    url: String,
    agent: Agent,
}

impl Source {
    /// Takes an address as people write it: `localhost:9464`, `http://localhost:9464/wheels`.
    pub(crate) fn new(url: &str) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(MAX_TIME))
            .build();
        Source {
            url: whole(url),
            agent: config.into(),
        }
    }

    /// Returns the whole address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Asks for the figures of this moment. Waits for two seconds at most.
    ///
    /// # Errors
    /// If nobody answers, or the answer is something else.
    pub(crate) fn fetch(&self) -> Result<Figures, Box<dyn Error>> {
        let mut answer = self.agent.get(&self.url).call()?;
        let body = answer
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER)
            .read_to_string()?;
        Ok(serde_json::from_str(&body).map_err(|error| format!("not figures: {error}"))?)
    }
}

/// Returns the address with its scheme, and with the path at which services answer.
fn whole(url: &str) -> String {
    let url = if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    };
    let (scheme, rest) = url.split_once("://").expect("it has a scheme");
    match rest.split_once('/') {
        // What Prometheus reads lies beside.
        None | Some((_, "" | "metrics")) => {
            let host = rest.split('/').next().unwrap_or(rest);
            format!("{scheme}://{host}/wheels")
        }
        Some(_) => url,
    }
}

/// The last figures, and what happened since those before.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// The figures.
    pub(crate) figures: Figures,
    /// One for each timer.
    pub(crate) timers: Vec<TimerRates>,
    /// One for each purgatory.
    pub(crate) purgatories: Vec<PurgatoryRates>,
    at: Instant,
}

/// What a timer did in each second since the sample before, and how late it was.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TimerRates {
    pub(crate) added: f64,
    pub(crate) cancelled: f64,
    pub(crate) rescheduled: f64,
    pub(crate) expired: f64,
    pub(crate) wakeups: f64,
    /// Of what has expired since.
    pub(crate) lateness: LatenessFigures,
}

/// What happened in a purgatory in each second since the sample before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PurgatoryRates {
    pub(crate) completed: f64,
    pub(crate) expired: f64,
}

impl Sample {
    /// Compares figures with the sample before, if there is one. What was not there before has no
    /// rates yet.
    pub(crate) fn new(figures: Figures, at: Instant, former: Option<&Sample>) -> Self {
        let passed = former.map_or(Duration::ZERO, |former| at.duration_since(former.at));
        let timers = figures.timers.iter().map(|timer| {
            let before = former.map(|former| &former.figures.timers);
            let before = before.and_then(|all| all.iter().find(|it| it.name == timer.name));
            before
                .map(|before| timer_rates(timer, before, passed))
                .unwrap_or_default()
        });
        let purgatories = figures.purgatories.iter().map(|purgatory| {
            let before = former.map(|former| &former.figures.purgatories);
            let before = before.and_then(|all| all.iter().find(|it| it.name == purgatory.name));
            before
                .map(|before| purgatory_rates(purgatory, before, passed))
                .unwrap_or_default()
        });
        let timers = timers.collect();
        let purgatories = purgatories.collect();
        Sample {
            figures,
            timers,
            purgatories,
            at,
        }
    }

    /// Returns the longest times by which timers were late, the longest first: the timer, the end
    /// of the bar, how many since the service began, and how many since the sample before.
    pub(crate) fn slowest(&self) -> Vec<(&str, Duration, u64, u64)> {
        let rows = self
            .figures
            .timers
            .iter()
            .zip(&self.timers)
            .flat_map(|(timer, rates)| {
                timer.lateness.bars.iter().map(|(up_to_ns, count)| {
                    let new = rates
                        .lateness
                        .bars
                        .iter()
                        .find(|(other, _)| other == up_to_ns);
                    let new = new.map_or(0, |(_, new)| *new);
                    (&*timer.name, Duration::from_nanos(*up_to_ns), *count, new)
                })
            });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|(_, up_to, ..)| std::cmp::Reverse(*up_to));
        rows
    }
}

fn timer_rates(now: &TimerFigures, before: &TimerFigures, passed: Duration) -> TimerRates {
    TimerRates {
        added: rate(now.added, before.added, passed),
        cancelled: rate(now.cancelled, before.cancelled, passed),
        rescheduled: rate(now.rescheduled, before.rescheduled, passed),
        expired: rate(now.expired, before.expired, passed),
        wakeups: rate(now.wakeups, before.wakeups, passed),
        lateness: now.lateness.since(&before.lateness),
    }
}

fn purgatory_rates(
    now: &PurgatoryFigures,
    before: &PurgatoryFigures,
    passed: Duration,
) -> PurgatoryRates {
    let completed = |it: &PurgatoryFigures| {
        it.completed_at_once + it.completed_by_trigger + it.completed_by_force
    };
    PurgatoryRates {
        completed: rate(completed(now), completed(before), passed),
        expired: rate(now.expired, before.expired, passed),
    }
}

/// Computes a rate. A service that was restarted counts from zero, which gives no rate.
fn rate(now: u64, before: u64, passed: Duration) -> f64 {
    if passed.is_zero() {
        0.0
    } else {
        now.saturating_sub(before) as f64 / passed.as_secs_f64()
    }
}

/// From how often to how seldom figures are asked for.
const INTERVALS_MS: [u64; 8] = [100, 200, 500, 1000, 2000, 5000, 10_000, 60_000];

/// What the view shows.
#[derive(Debug)]
pub(crate) struct App {
    /// Where the figures come from.
    pub(crate) url: String,
    /// How long until they are asked for again.
    pub(crate) interval: Duration,
    /// Whether they stand still.
    pub(crate) frozen: bool,
    /// The last ones.
    pub(crate) sample: Option<Sample>,
    /// Why there are no newer ones.
    pub(crate) error: Option<String>,
    /// Which timer's wheels are shown.
    pub(crate) selected: usize,
    /// Whether to end.
    pub(crate) ended: bool,
}

impl App {
    pub(crate) fn new(url: &str, interval: Duration) -> Self {
        App {
            url: url.to_owned(),
            interval,
            frozen: false,
            sample: None,
            error: None,
            selected: 0,
            ended: false,
        }
    }

    /// Takes what the source has answered. After an error the last figures stay.
    pub(crate) fn take(&mut self, answer: Result<Figures, String>, at: Instant) {
        match answer {
            Ok(figures) => {
                self.selected = self.selected.min(figures.timers.len().saturating_sub(1));
                self.sample = Some(Sample::new(figures, at, self.sample.as_ref()));
                self.error = None;
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// Does what a key is for.
    pub(crate) fn press(&mut self, key: impl Into<KeyEvent>) {
        let key = key.into();
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => self.ended = true,
            // A terminal in raw mode sends no signal.
            KeyCode::Char('c') if key.modifiers == KeyModifiers::CONTROL => self.ended = true,
            KeyCode::Char('f' | ' ') => self.frozen = !self.frozen,
            KeyCode::Char('+') => self.interval = self.next_interval(|next, now| next > now),
            KeyCode::Char('-') => self.interval = self.next_interval(|next, now| next < now),
            KeyCode::Down | KeyCode::Tab | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::BackTab | KeyCode::Char('k') => self.select(-1),
            _ => {}
        }
    }

    /// Returns the nearest interval for which that holds, or the present one if there is none.
    fn next_interval(&self, holds: impl Fn(Duration, Duration) -> bool) -> Duration {
        let intervals = INTERVALS_MS.map(Duration::from_millis).into_iter();
        let found = intervals.filter(|next| holds(*next, self.interval));
        found
            .min_by_key(|next| next.abs_diff(self.interval))
            .unwrap_or(self.interval)
    }

    fn select(&mut self, by: isize) {
        let count = self
            .sample
            .as_ref()
            .map_or(0, |sample| sample.figures.timers.len());
        self.selected = (self.selected as isize + by).rem_euclid(count.max(1) as isize) as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_made_whole() {
        for (given, whole_url) in [
            ("localhost:9464", "http://localhost:9464/wheels"),
            ("http://localhost:9464/", "http://localhost:9464/wheels"),
            ("localhost:9464/metrics", "http://localhost:9464/wheels"),
            (
                "http://[::1]:1/timers?of=all",
                "http://[::1]:1/timers?of=all",
            ),
        ] {
            assert_eq!(whole(given), whole_url);
        }
    }

    fn with_timers(count: usize) -> App {
        let mut app = App::new("http://localhost/wheels", Duration::from_secs(1));
        let mut figures = Figures::default();
        figures.timers = vec![TimerFigures::default(); count];
        app.take(Ok(figures), Instant::now());
        app
    }

    #[test]
    fn keys_freeze_and_end_it() {
        let mut app = with_timers(1);
        for (key, frozen) in [('f', true), (' ', false), ('x', false), ('c', false)] {
            app.press(KeyCode::Char(key));
            assert_eq!((app.frozen, app.ended), (frozen, false));
        }
        let keys = [KeyCode::Char('q'), KeyCode::Esc].map(KeyEvent::from);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for key in keys.into_iter().chain([control_c]) {
            let mut app = with_timers(1);
            app.press(key);
            assert!(app.ended, "{key:?}");
        }
    }

    #[test]
    fn plus_and_minus_change_the_interval_as_far_as_it_goes() {
        let mut app = with_timers(1);
        let mut press = |key, times| {
            (0..times).for_each(|_| app.press(KeyCode::Char(key)));
            app.interval.as_millis()
        };
        assert_eq!((press('+', 1), press('-', 2)), (2000, 500));
        assert_eq!((press('-', 20), press('+', 20)), (100, 60_000));
        app.interval = Duration::from_millis(700);
        app.press(KeyCode::Char('+'));
        assert_eq!(app.interval.as_millis(), 1000);
    }

    #[test]
    fn the_choice_of_a_timer_goes_round() {
        let mut app = with_timers(3);
        let mut press = |key| {
            app.press(key);
            app.selected
        };
        let keys = [
            KeyCode::Down,
            KeyCode::Tab,
            KeyCode::Down,
            KeyCode::Up,
            KeyCode::Up,
        ];
        assert_eq!(keys.map(&mut press), [1, 2, 0, 2, 1]);
        // Of those that are left, the last is chosen.
        app.take(Ok(Figures::default()), Instant::now());
        assert_eq!(app.selected, 0);
        app.press(KeyCode::Down);
        assert_eq!(app.selected, 0);
    }

    #[test]
    fn what_was_read_stays_when_the_service_is_gone() {
        let mut app = with_timers(2);
        app.take(Err("connection refused".to_owned()), Instant::now());
        assert!(app.error.is_some());
        assert_eq!(
            app.sample
                .as_ref()
                .map(|sample| sample.figures.timers.len()),
            Some(2)
        );
        app.take(Ok(Figures::default()), Instant::now());
        assert_eq!(app.error, None);
    }
}
