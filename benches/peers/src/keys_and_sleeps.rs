//! Who takes part in the works on keys and on sleeps, all of them on tokio's real clock.

use crate::Bench;
use crate::contenders::{
    FuturesTimer, KeyedTimer, Pingora, QueueAndMap, SleepingTasks, TokioSleep,
};
use crate::keyed::{self, Keyed};
use crate::sleeps::{self, Sleeper};
use tickwheel::Timer;

impl Bench {
    pub fn on_tokios_clock(&mut self) {
        self.keyed::<KeyedTimer>("tickwheel");
        self.keyed::<QueueAndMap>("DelayQueue + map");
        self.keyed::<SleepingTasks>("tokio tasks + dashmap");
        self.keyed_shared::<KeyedTimer>("tickwheel");
        self.keyed_shared::<SleepingTasks>("tokio tasks + dashmap");
        self.sleeps::<Timer>("tickwheel");
        self.sleeps::<TokioSleep>("tokio sleep");
        self.sleeps::<Pingora>("pingora-timeout");
        self.sleeps::<FuturesTimer>("futures-timer");
    }

    fn keyed<K: Keyed>(&mut self, who: &'static str) {
        if !who.starts_with(&self.options.who) {
            return;
        }
        if self.wants("K1") {
            self.ns("K1", who, keyed::churn::<K>(self.count()));
        }
        if self.wants("K_touch_1") {
            self.ns("K_touch_1", who, keyed::touch::<K>(self.count()));
        }
    }

    fn keyed_shared<K: Keyed + Clone>(&mut self, who: &'static str) {
        if who.starts_with(&self.options.who) && self.wants("K_touch_2") {
            self.ns("K_touch_2", who, keyed::touch_shared::<K>(2, self.count()));
        }
    }

    fn sleeps<S: Sleeper>(&mut self, who: &'static str) {
        if !who.starts_with(&self.options.who) {
            return;
        }
        if self.wants("S1") {
            self.ns("S1", who, sleeps::one::<S>(self.count()));
        }
        if (self.wants("S_memory") || self.wants("S_idle")) && self.round == 1 {
            let seconds = if self.options.quick { 1 } else { 10 };
            let crowd = sleeps::crowd::<S>(1_000_000, seconds);
            for (work, unit, value) in [
                ("S_memory", "bytes", crowd.bytes),
                ("S_memory_future", "bytes", crowd.future_bytes),
                ("S_idle", "wake-ups", crowd.wakeups),
                ("S_idle_cpu", "ms", crowd.cpu_ms),
            ] {
                self.sample(work, who, unit, value);
            }
        }
    }

    /// Returns how often keyed timers and sleeps do their work, and how many expire.
    pub fn count(&self) -> u64 {
        if self.options.quick { 200_000 } else { 1_000_000 }
    }
}
