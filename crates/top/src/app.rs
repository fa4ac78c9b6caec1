//! The app: what is shown, and what keys do to it.

use crate::sample::Sample;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::time::{Duration, Instant};
use tickwheel_prometheus::Figures;

/// From how often to how seldom figures are asked for.
const INTERVALS_MS: [u64; 8] = [100, 200, 500, 1000, 2000, 5000, 10_000, 60_000];

/// What the view shows.
#[derive(Debug)]
pub struct App {
    /// Where the figures come from.
    pub url: String,
    /// How long until they are asked for again.
    pub interval: Duration,
    /// Whether they stand still.
    pub frozen: bool,
    /// The last ones.
    pub sample: Option<Sample>,
    /// Why there are no newer ones.
    pub error: Option<String>,
    /// Which timer's wheels are shown.
    pub selected: usize,
    /// Whether to end.
    pub ended: bool,
}

impl App {
    pub fn new(url: &str, interval: Duration) -> Self {
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
    pub fn take(&mut self, answer: Result<Figures, String>, at: Instant) {
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
    pub fn press(&mut self, key: impl Into<KeyEvent>) {
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
        found.min_by_key(|next| next.abs_diff(self.interval)).unwrap_or(self.interval)
    }

    fn select(&mut self, by: isize) {
        let count = self.sample.as_ref().map_or(0, |sample| sample.figures.timers.len());
        self.selected = (self.selected as isize + by).rem_euclid(count.max(1) as isize) as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickwheel_prometheus::TimerFigures;

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
        let keys = [KeyCode::Down, KeyCode::Tab, KeyCode::Down, KeyCode::Up, KeyCode::Up];
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
        assert_eq!(app.sample.as_ref().map(|sample| sample.figures.timers.len()), Some(2));
        app.take(Ok(Figures::default()), Instant::now());
        assert_eq!(app.error, None);
    }
}
