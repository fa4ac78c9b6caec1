//! What a sequence draws, beside SET and times: values, keys, transactions, administration.

use crate::sequence::{Sequence, Step, ask, bytes};
use std::time::Duration;

/// All that are drawn.
pub(crate) const COMMANDS: [&str; 47] = [
    "set",
    "get",
    "getex",
    "del",
    "exists",
    "expire",
    "pexpire",
    "expireat",
    "pexpireat",
    "ttl",
    "pttl",
    "expiretime",
    "pexpiretime",
    "persist",
    "dbsize",
    "keys",
    "flushall",
    "select",
    "ping",
    "echo",
    "multi",
    "exec",
    "discard",
    "watch",
    "unwatch",
    "scan",
    "setex",
    "psetex",
    "setnx",
    "getset",
    "mget",
    "mset",
    "msetnx",
    "getdel",
    "unlink",
    "touch",
    "strlen",
    "append",
    "incr",
    "decr",
    "incrby",
    "decrby",
    "incrbyfloat",
    "type",
    "rename",
    "renamenx",
    "randomkey",
];

impl Sequence {
    /// Draws a command that reads or writes values.
    pub(crate) fn value(&mut self) -> Step {
        let (one, other) = (self.key(), self.key());
        let numbers = ["1", "-7", "x", "9223372036854775807", "-9223372036854775808", "", "1.5"];
        let number = numbers[self.random.usize(..numbers.len())];
        let floats = ["0.5", "-2.25", "3e3", "x", "", "nan", "inf", " 1"];
        let float = floats[self.random.usize(..floats.len())];
        match self.random.u32(..19) {
            0 | 1 => ask(&["incr", &one]),
            2 => ask(&["decr", &one]),
            3 => ask(&["incrby", &one, number]),
            4 => ask(&["decrby", &one, number]),
            // Binary fractions: the servers do not have the same precision.
            5 => {
                self.planned.push(ask(&["incrbyfloat", &one, float]));
                ask(&["set", &one, ["1.5", "-0.25", "10", "3000", "v", ""][self.random.usize(..6)]])
            }
            6 => ask(&["append", &one, number]),
            7 => ask(&["strlen", &one]),
            8 => ask(&["set", &one, number]),
            9 => ask(&["mget", &one, &other, "none"]),
            10 => ask(&["mset", &one, "1", &other, number]),
            11 => ask(&["msetnx", &one, "1", &other, number]),
            12 => ask(&["getdel", &one]),
            13 => ask(&["setnx", &one, number]),
            14 => ask(&["getset", &one, number]),
            15 => ask(&["unlink", &one, &other]),
            16 => ask(&["touch", &one, &other, &one]),
            17 => {
                let seconds = self.time("ex");
                ask(&["setex", &one, &seconds, number])
            }
            _ => {
                let ms = self.time("px");
                ask(&["psetex", &one, &ms, number])
            }
        }
    }

    /// Draws a command about keys, whatever their values.
    pub(crate) fn keyspace(&mut self) -> Step {
        let (one, other) = (self.key(), self.key());
        match self.random.u32(..9) {
            0 => ask(&["type", &one]),
            1 | 2 => ask(&["rename", &one, &other]),
            3 => ask(&["renamenx", &one, &other]),
            4 => ask(&["object", ["encoding", "freq", "none"][self.random.usize(..3)], "none"]),
            // The same from both, if there is at most one.
            5 => {
                self.planned = vec![ask(&["randomkey"]), ask(&["mset", &one, "1"])];
                ask(&["flushall"])
            }
            6 => ask(&["scan", ["x", "-", "18446744073709551616"][self.random.usize(..3)]]),
            _ => {
                let options: [&[&str]; 7] = [
                    &[],
                    &["match", "key*"],
                    &["TYPE", "string"],
                    &["type", "list"],
                    &["count", "0"],
                    &["count", "x"],
                    &["match"],
                ];
                let options = options[self.random.usize(..options.len())];
                ask(&[&["scan", "0", "count", "1000"][..], options].concat())
            }
        }
    }

    /// Draws a transaction, with a watched key at times, and errors inside it.
    pub(crate) fn transaction(&mut self) -> Step {
        let mut steps = Vec::new();
        if self.random.bool() {
            let (one, other) = (self.key(), self.key());
            steps.push(ask(&["watch", &one, &other]));
            match self.random.u32(..8) {
                0 => steps.push(ask(&["unwatch"])),
                1..4 => steps.push(self.value()),
                4 => steps.push(self.expire()),
                5 => {
                    // It expires by itself, or goes and comes back as it was.
                    let end = [&["pexpire", &one, "5"][..], &["rename", &one, &other]];
                    steps.push(ask(end[self.random.usize(..2)]));
                    steps.push(Step::Pass(Duration::from_millis(15)));
                }
                _ => {}
            }
        }
        steps.push(ask(&["multi"]));
        for _ in 0..self.random.usize(..5) {
            let step = match self.random.u32(..24) {
                0..14 => self.value(),
                // But for KEYS, whose reply has no order.
                14..16 => ask(&["exists", "a", "b"]),
                16..18 => self.set(),
                18 => ask(&["persist", "a"]),
                19 => ask(&["multi"]),
                20 => ask(&["watch", "a"]),
                21 => ask(&["get"]),
                22 => ask(&["nonesuch"]),
                _ => ask(&["client", "getname"]),
            };
            steps.push(step);
        }
        steps.push(if self.random.u32(..6) == 0 { ask(&["discard"]) } else { ask(&["exec"]) });
        steps.reverse();
        self.planned = steps;
        ask(&["unwatch"])
    }

    /// Draws what clients say of themselves and ask of the server.
    pub(crate) fn administer(&mut self) -> Step {
        let lines = include_str!("lines.txt");
        let lines: Vec<_> = lines.lines().collect();
        let line = lines[self.random.usize(..lines.len())];
        // An empty word is written as a tilde, and a blank in a word as an underscore.
        let words = line.split(' ').map(|word| word.replace('_', " ").replace('~', ""));
        Step::Ask(bytes(words.collect()))
    }
}
