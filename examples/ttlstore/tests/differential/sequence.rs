//! A random sequence of commands.
//!
//! The servers are asked one after the other, so nothing may depend on the milliseconds between:
//! TTLs that are compared with others are minutes apart, and short ones end in a pause.

use crate::draws::COMMANDS;
use fastrand::Rng;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const KEYS: [&str; 5] = ["a", "b", "key:1", "key:2", "\u{e9}*[x]"];

pub(crate) enum Step {
    Ask(Vec<Vec<u8>>),
    Pass(Duration),
}

pub(crate) struct Sequence {
    pub(crate) seed: u64,
    /// Times of the wall clock at which keys were told to expire.
    pub(crate) dates_ms: Vec<i64>,
    pub(crate) random: Rng,
    start_ms: i64,
    /// Minutes that no command has used.
    pub(crate) minutes: Vec<i64>,
    /// What comes next, the last first.
    pub(crate) planned: Vec<Step>,
    left: usize,
}

impl Sequence {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock that is set");
        let mut minutes: Vec<i64> = (2..200).collect();
        random.shuffle(&mut minutes);
        Sequence {
            seed,
            dates_ms: Vec::new(),
            random,
            start_ms: wall.as_millis() as i64,
            minutes,
            planned: vec![ask(&["flushall"])],
            left: 60,
        }
    }

    pub(crate) fn next(&mut self) -> Option<Step> {
        if let Some(step) = self.planned.pop() {
            return Some(step);
        }
        self.left = self.left.checked_sub(1)?;
        Some(match self.random.u32(..100) {
            0..18 => self.set(),
            18..30 => self.expire(),
            30..40 => self.ttl(),
            40..45 => self.getex(),
            45..55 => self.plain(),
            55..73 => self.value(),
            73..80 => self.keyspace(),
            80..88 => self.transaction(),
            88..92 => self.administer(),
            92..98 => self.wrong(),
            98 => self.soon(),
            _ => self.count(),
        })
    }

    pub(crate) fn set(&mut self) -> Step {
        let value = ["", "v", "longer value"][self.random.usize(..3)];
        let mut words = vec!["set".to_owned(), self.key(), value.to_owned()];
        for _ in 0..self.random.usize(..3) {
            let option = ["nx", "XX", "get", "keepttl", "persist"][self.random.usize(..5)];
            words.push(option.to_owned());
        }
        self.add_time(&mut words);
        Step::Ask(bytes(words))
    }

    fn getex(&mut self) -> Step {
        let mut words = vec!["getex".to_owned(), self.key()];
        if self.random.u32(..4) == 0 {
            words.push(["persist", "keepttl", "nx"][self.random.usize(..3)].to_owned());
        }
        self.add_time(&mut words);
        Step::Ask(bytes(words))
    }

    fn add_time(&mut self, words: &mut Vec<String>) {
        for _ in 0..[0, 0, 0, 1, 1, 1, 1, 1, 1, 2][self.random.usize(..10)] {
            let unit = ["ex", "PX", "exat", "pxat"][self.random.usize(..4)];
            words.extend([unit.to_owned(), self.time(&unit.to_lowercase())]);
        }
    }

    pub(crate) fn expire(&mut self) -> Step {
        let (command, unit) =
            [("expire", "ex"), ("pexpire", "px"), ("EXPIREAT", "exat"), ("pexpireat", "pxat")]
                [self.random.usize(..4)];
        let mut words = vec![command.to_owned(), self.key(), self.time(unit)];
        for _ in 0..[0, 0, 0, 1, 1, 1, 1, 2][self.random.usize(..8)] {
            words.push(["nx", "xx", "GT", "lt", "yy"][self.random.usize(..5)].to_owned());
        }
        Step::Ask(bytes(words))
    }

    /// Digits: mostly a time that nothing else has.
    pub(crate) fn time(&mut self, unit: &str) -> String {
        if self.random.u32(..8) == 0 {
            let odd = [
                "0",
                "-1",
                "-100",
                "abc",
                "",
                "1.5",
                "+5",
                "007",
                " 1",
                "-9223372036854775808",
                "9223372036854775807",
                "9223372036854775808",
                "9223372036854775",
            ];
            // That far, Redis' own EXPIRETIME overflows.
            let count = if unit.ends_with("at") { odd.len() - 3 } else { odd.len() };
            return odd[self.random.usize(..count)].to_owned();
        }
        let minutes = self.minutes.pop().expect("there are enough");
        let (seconds, date_s) = (minutes * 60, self.start_ms / 1000 + minutes * 60);
        let is_past = self.random.u32(..10) == 0;
        match unit {
            "ex" => seconds.to_string(),
            "px" => (seconds * 1000).to_string(),
            _ if is_past => minutes.to_string(),
            "exat" => {
                self.dates_ms.push(date_s * 1000);
                date_s.to_string()
            }
            _ => {
                self.dates_ms.push(self.start_ms + seconds * 1000);
                (self.start_ms + seconds * 1000).to_string()
            }
        }
    }

    pub(crate) fn ttl(&mut self) -> Step {
        let commands = ["ttl", "pttl", "expiretime", "PEXPIRETIME", "persist"];
        let key = self.key();
        ask(&[commands[self.random.usize(..5)], &key])
    }

    pub(crate) fn plain(&mut self) -> Step {
        let (one, other) = (self.key(), self.key());
        match self.random.u32(..18) {
            0..6 => ask(&["get", &one]),
            6 | 7 => ask(&["del", &one]),
            8 => ask(&["del", &one, &other]),
            9 | 10 => ask(&["exists", &one, &other, &one]),
            11 => ask(&["ping"]),
            12 => ask(&["echo", &one]),
            13 => ask(&["select", ["0", "x", "-1"][self.random.usize(..3)]]),
            14 => ask(&["flushall", ["async", "sync", "maybe"][self.random.usize(..3)]]),
            _ => {
                let patterns = ["*", "key:*", "?", "[a-b]", "[^a]", "\\a", "k*1", "*\\*[[]x]", ""];
                ask(&["keys", patterns[self.random.usize(..patterns.len())]])
            }
        }
    }

    /// Returns a step with too few or too many words, or a command that does not exist.
    fn wrong(&mut self) -> Step {
        if self.random.u32(..8) == 0 {
            return ask(&["nonesuch", "with", "some words"]);
        }
        let mut words = vec![COMMANDS[self.random.usize(..COMMANDS.len())].to_owned()];
        let count = self.random.usize(..5);
        if count == 0 && words[0] == "dbsize" {
            return self.count();
        }
        words.resize_with(count + 1, || self.key());
        if ["multi", "randomkey"].contains(&&*words[0]) && count == 0 {
            return self.transaction();
        }
        Step::Ask(bytes(words))
    }

    /// Lets a key vanish at both before the next command.
    fn soon(&mut self) -> Step {
        let key = self.key();
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis();
        let date = (now_ms + 10).to_string();
        let first = match self.random.u32(..4) {
            0 => ask(&["set", &key, "v", "px", "10"]),
            1 => ask(&["set", &key, "v", "pxat", &date]),
            2 => ask(&["pexpire", &key, "10"]),
            _ => ask(&["getex", &key, "px", "10"]),
        };
        self.planned = vec![ask(&["get", &key]), Step::Pass(Duration::from_millis(25))];
        first
    }

    /// Counts the keys. Redis counts expired keys until it comes across them, so they are looked at
    /// before.
    fn count(&mut self) -> Step {
        self.planned = vec![ask(&["dbsize"])];
        ask(&[&["exists"], &KEYS[..]].concat())
    }

    pub(crate) fn key(&mut self) -> String {
        KEYS[self.random.usize(..KEYS.len())].to_owned()
    }
}

pub(crate) fn ask(words: &[&str]) -> Step {
    Step::Ask(words.iter().map(|word| word.as_bytes().to_vec()).collect())
}

pub(crate) fn bytes(words: Vec<String>) -> Vec<Vec<u8>> {
    words.into_iter().map(String::into_bytes).collect()
}
