//! The readers of sources, tried on what they might overlook.

use crate::sources::{Tree, code, functions};

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

#[test]
fn the_reader_of_functions_sees_the_ends_of_them_all() {
    let body = "    code();\n".repeat(117);
    assert_eq!(functions(&format!("fn f() {{\n{body}}}\n")), [(1, 119)]);
    assert_eq!(
        functions(&format!("\nfn f(\n    a: u8,\n) {{\n{body}}}\n")),
        [(2, 121)]
    );
    let bounded = format!("pub(crate) async fn f<T>()\nwhere\n    T: A,\n{{\n{body}}}\n");
    assert_eq!(functions(&bounded), [(1, 122)]);
    let methods =
        "impl A {\n    fn a() {}\n\n    const fn b() {\n        c(|| {\n        });\n    }\n}\n";
    assert_eq!(functions(methods), [(2, 1), (4, 4)]);
    let without =
        "trait A {\n    fn a();\n    fn b(\n        x: u8,\n    ) -> u8;\n    fn c() {\n    }\n}\n";
    assert_eq!(functions(without), [(2, 1), (3, 3), (6, 2)]);
    let bounded = "    fn a<T>()\n    where\n        T: B;\n\n    fn c() {\n        d();\n    }\n";
    assert_eq!(functions(bounded), [(1, 3), (5, 3)]);
    assert_eq!(functions("/// A fn of it {\nlet fnord = 1;\n"), []);
    assert_eq!(functions("fn f() {\n"), [(1, usize::MAX)]);
}
