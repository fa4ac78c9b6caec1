//! The metrics: what is registered, by name, and read at each scrape.

use crate::encode;
use crate::figures::{Count, Figures, LeaseFigures, PurgatoryFigures, TimerFigures};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tickwheel::keyed::KeyedTimer;
use tickwheel::purgatory::{DelayedOperation, Purgatory};
use tickwheel::{Timer, WeakTimer};
use tickwheel_leases::Leases;

/// Timers, and the structures built on them, whose figures Prometheus reads.
///
/// Register each with one line, and the metrics with a
/// [`Registry`](prometheus_client::registry::Registry), as a collector. Every figure is read when
/// it is asked for: between scrapes this costs nothing. A scrape locks every shard a few times, and
/// visits every armed bucket once, but no timer. It holds a shard's lock while it visits the
/// buckets of that shard.
///
/// A scrape holds a clone of each timer while it reads that timer, and so may drop the last one,
/// which waits for the reaper's batch. If a task needs the registry's lock, shut the timer down
/// before you drop your last clone.
///
/// Names become the labels `timer`, `purgatory`, `keyed_timer`, `leases` and `durable`. A name
/// that is taken gets a number: the second timer called `sessions` is shown as `sessions-2`.
///
/// Cloning shares the metrics.
///
/// ```
/// use prometheus_client::encoding::text::encode;
/// use prometheus_client::registry::Registry;
/// use tickwheel::Timer;
/// use tickwheel_prometheus::Metrics;
///
/// let timer = Timer::builder().name("sessions").start()?;
/// let metrics = Metrics::default();
/// metrics.timer(&timer);
///
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(metrics));
/// let mut page = String::new();
/// encode(&mut page, &registry)?;
/// assert!(page.contains("tickwheel_timer_pending{timer=\"sessions\"} 0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Metrics {
    sources: Arc<Mutex<Sources>>,
}

/// What is registered, with the names that are shown.
#[derive(Clone, Default)]
struct Sources {
    timers: Vec<Source<Option<TimerFigures>>>,
    purgatories: Vec<Source<PurgatoryFigures>>,
    keyed_timers: Vec<Source<Count>>,
    leases: Vec<Source<LeaseFigures>>,
    #[cfg(feature = "durable")]
    durables: Vec<Source<(String, tickwheel_durable::Stats)>>,
}

/// Reads the figures of something that is shown under this name.
struct Source<F> {
    name: Arc<str>,
    read: Arc<dyn Fn(&str) -> F + Send + Sync>,
}

impl Metrics {
    /// Registers a timer, under its own name. The metrics do not keep it alive: when its last clone
    /// is dropped it is shown no more. Costs a read of all registered timers, to forget those that
    /// have gone.
    pub fn timer<T: Send + 'static>(&self, timer: &Timer<T>) {
        let weak: WeakTimer<T> = timer.downgrade();
        // A service that builds timer after timer keeps nothing of the former ones here. They are
        // read without the lock, as in `figures`.
        let known = self.lock().timers.clone();
        let gone: Vec<_> = known
            .iter()
            .filter(|source| source.read().is_none())
            .collect();
        let mut sources = self.lock();
        // Not by name: meanwhile another timer may have got it.
        sources
            .timers
            .retain(|it| !gone.iter().any(|gone| Arc::ptr_eq(&gone.name, &it.name)));
        add(&mut sources.timers, timer.name(), move |name| {
            let timer = weak.upgrade()?;
            Some(TimerFigures::new(name, &timer.stats(), &timer.snapshot()))
        });
    }

    /// Registers a purgatory. The metrics keep a clone of it, and so its timer, for as long as they
    /// live: drop them, too, where dropping the last clone has to end what is pending.
    pub fn purgatory<K, O, S>(&self, name: &str, purgatory: &Purgatory<K, O, S>)
    where
        K: Hash + Eq + Clone + Send + 'static,
        O: DelayedOperation,
        S: BuildHasher + Clone + Send + Sync + 'static,
    {
        let purgatory = purgatory.clone();
        add(&mut self.lock().purgatories, name, move |name| {
            PurgatoryFigures::new(name, &purgatory.stats())
        });
    }

    /// Registers a keyed timer, which the metrics keep as they keep a
    /// [purgatory](Self::purgatory). How many of its keys were added, cancelled and expired is
    /// among the figures of its timer.
    pub fn keyed_timer<K, T, S>(&self, name: &str, keyed: &KeyedTimer<K, T, S>)
    where
        K: Hash + Eq + Send + 'static,
        T: Send + 'static,
        S: BuildHasher + Clone + Send + Sync + 'static,
    {
        let keyed = keyed.clone();
        let count = move |name: &str| Count {
            name: name.to_owned(),
            count: keyed.len(),
        };
        add(&mut self.lock().keyed_timers, name, count);
    }

    /// Registers leases, which the metrics keep as they keep a [purgatory](Self::purgatory).
    pub fn leases<K>(&self, name: &str, leases: &Leases<K>)
    where
        K: Hash + Eq + Clone + Send + 'static,
    {
        let leases = leases.clone();
        add(&mut self.lock().leases, name, move |name| {
            LeaseFigures::new(name, &leases.stats())
        });
    }

    /// Registers a node of durable timers. The metrics keep a clone of it: drop them, too, where
    /// dropping the last clone has to stop the node; a drain does not wait for them.
    #[cfg(feature = "durable")]
    pub fn durable<S: tickwheel_durable::store::Store>(
        &self,
        name: &str,
        node: &tickwheel_durable::Durable<S>,
    ) {
        let node = node.clone();
        add(&mut self.lock().durables, name, move |name| {
            (name.to_owned(), node.stats())
        });
    }

    /// Reads all figures except those of durable timers. Includes the entries of each slot, which
    /// would be too many series for Prometheus. Costs as much as a scrape.
    #[must_use]
    pub fn figures(&self) -> Figures {
        // Not under the lock: an executor's own count of panics is a user's code.
        let sources = self.lock().clone();
        Figures {
            timers: sources.timers.iter().filter_map(Source::read).collect(),
            purgatories: sources.purgatories.iter().map(Source::read).collect(),
            keyed_timers: sources.keyed_timers.iter().map(Source::read).collect(),
            leases: sources.leases.iter().map(Source::read).collect(),
        }
    }

    /// Returns [all figures](Self::figures) as JSON: what a service answers at `/wheels`, for
    /// `tickwheel-top`.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string(&self.figures()).expect("figures are numbers, lists and names")
    }

    /// Locks the sources. A panic of a former holder has left nothing half done: it pushes or
    /// retains.
    fn lock(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds a source under its name, or, if that is taken, under the first number that is free.
fn add<F>(
    sources: &mut Vec<Source<F>>,
    name: &str,
    read: impl Fn(&str) -> F + Send + Sync + 'static,
) {
    let is_taken = |name: &str| sources.iter().any(|source| &*source.name == name);
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    let name = names
        .find(|name| !is_taken(name))
        .expect("some number is free");
    sources.push(Source {
        name: name.into(),
        read: Arc::new(read),
    });
}

impl<F> Source<F> {
    fn read(&self) -> F {
        (self.read)(&self.name)
    }
}

impl<F> Clone for Source<F> {
    fn clone(&self) -> Self {
        Source {
            name: Arc::clone(&self.name),
            read: Arc::clone(&self.read),
        }
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        encode::all(&mut encoder, &self.figures())?;
        #[cfg(feature = "durable")]
        {
            let sources = self.lock().durables.clone();
            let nodes: Vec<_> = sources.iter().map(Source::read).collect();
            if !nodes.is_empty() {
                encode::nodes(&mut encoder, &nodes)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
