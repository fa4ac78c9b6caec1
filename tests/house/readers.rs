//! The readers of sources, tried on what they might overlook.

use crate::sources::{Tree, code};

/// Returns the modules that `text` uses, if it is in the module `own`.
fn seen_in(own: &str, text: &str) -> Vec<String> {
    let modules = ["timer", "gate", "gate::latch", "keyed", "lib"].map(str::to_owned);
    let used = Tree::new(modules).used_by(own, text);
    used.into_iter()
        .map(|(line, used)| format!("{line} {}", used.unwrap_or_else(|e| e)))
        .collect()
}

#[test]
fn the_reader_of_imports_sees_them_all() {
    let sees = |text: &str, expected: &[&str]| assert_eq!(seen_in("keyed", text), expected);
    sees(
        "use crate::gate::{A, b, latch::C};",
        &["1 gate", "1 gate", "1 gate::latch"],
    );
    sees(
        "let x = crate::gate::wait(crate::timer::N);",
        &["1 gate", "1 timer"],
    );
    sees(
        "use crate::{gate::{latch::Latch, Gate}, timer};",
        &["1 gate::latch", "1 gate", "1 timer"],
    );
    // Over several lines; renamed; by a macro.
    sees(
        "\nuse crate::{\n    gate::Gate as G,\n    timer, // Why.\n};\n",
        &["2 gate", "2 timer"],
    );
    sees("    $crate::timer::f()", &["1 timer"]);
    // What it cannot follow is no way round it.
    sees("use super::timer;", &["1 a path from super::"]);
    sees("fn f(x: super::Timer) {}", &["1 a path from super::"]);
    sees("use self::timer::Timer;", &["1 a path from self::"]);
    sees("use crate::*;", &["1 crate::*"]);
    sees("use crate::Unknown;", &["1 crate::Unknown"]);
    // What a module exports it does not use itself.
    sees("pub use crate::gate::Gate;", &[]);
    sees("pub(crate) use crate::gate::Gate;", &["1 gate"]);
    assert_eq!(seen_in("gate", "use latch::Latch;"), ["1 gate::latch"]);
    assert_eq!(seen_in("gate", "let x = latch::new();"), ["1 gate::latch"]);
    // Neither comments nor unit tests, nor what only looks like it.
    sees("code(); // crate::timer::Timer\n/// crate::gate\n", &[]);
    sees(
        "use mycrate::timer; let notsuper::x = 1; std::gate::latch::f();",
        &[],
    );
    sees("#[cfg(test)]\nmod tests {\n    use super::*;\n}\n", &[]);
    sees(
        "#[cfg(test)]\nfn helper() {}\nuse crate::timer;\n",
        &["3 timer"],
    );
    let text = "/// crate::a\n\ncode\n#[cfg(all(test, x))]\nmod tests {\n    use crate::b;\n}\n";
    assert_eq!(code(text).collect::<Vec<_>>(), [(3, "code")]);
}
