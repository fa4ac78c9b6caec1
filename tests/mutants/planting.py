"""Plants all mutants of the library at once: each function asks which of its mutants is to run.

The body of a function with the mutants 7 and 8 becomes

    match crate::mutant::at(3) {
        7 => { the body with mutant 7 }
        8 => { the body with mutant 8 }
        _ => { the body }
    }

so the tests are built once for all mutants, and an environment variable chooses one. What the
compiler refuses is left out. A function whose type depends on its body (`-> impl ...`) can't be
planted that way, so its mutants are not tried.
"""

import json
from bisect import bisect_right
from dataclasses import dataclass, field

# The module that is added to the copy. With `TICKWHEEL_MUTANT=0` and `TICKWHEEL_REACHED=FILE`, a
# program writes the number of each function that it reaches to the file.
MODULE = """
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

static CHOSEN: OnceLock<u32> = OnceLock::new();
static FILE: OnceLock<Option<File>> = OnceLock::new();
static REACHED: [AtomicBool; %d] = [const { AtomicBool::new(false) }; %d];

pub(crate) fn at(function: usize) -> u32 {
    let chosen = *CHOSEN.get_or_init(|| {
        std::env::var("TICKWHEEL_MUTANT").map_or(0, |number| number.parse().unwrap())
    });
    if chosen == 0 && !REACHED[function].load(Ordering::Relaxed) {
        REACHED[function].store(true, Ordering::Relaxed);
        let file = FILE.get_or_init(|| {
            let path = std::env::var_os("TICKWHEEL_REACHED")?;
            Some(OpenOptions::new().create(true).append(true).open(path).unwrap())
        });
        if let Some(mut file) = file.as_ref() {
            file.write_all(format!("{function}\\n").as_bytes()).unwrap();
        }
    }
    chosen
}
"""


@dataclass
class Function:
    """A function with mutants: where its statements are in its file."""
    number: int
    file: str
    start: int
    end: int
    planted: bool
    mutants: list = field(default_factory=list)


class Offsets:
    """Lines and columns of a text, as offsets into it."""

    def __init__(self, text):
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def of(self, place):
        return self.starts[place["line"] - 1] + place["column"] - 1

    def line(self, offset):
        return bisect_right(self.starts, offset)


def functions_of(mutants, texts):
    """The outermost functions that contain the mutants."""
    offsets = {file: Offsets(text) for file, text in texts.items()}
    spans = {}
    for mutant in mutants:
        at = offsets[mutant.file]
        mutant.start, mutant.end = at.of(mutant.span["start"]), at.of(mutant.span["end"])
        span = mutant.function["span"]
        outer = (mutant.file, at.of(span["start"]), at.of(span["end"]))
        bodies = spans.setdefault(outer, [])
        if mutant.genre == "FnValue":
            bodies.append((mutant.start, mutant.end))
    functions, last = [], None
    for (file, start, end), bodies in sorted(spans.items(), key=lambda it: (it[0][:2], -it[0][2])):
        if last and last[0] == file and end <= last[2]:
            continue
        last = (file, start, end)
        head = texts[file][start:bodies[0][0]] if bodies else ""
        planted = bool(bodies) and "-> impl" not in head and "const fn" not in head
        body = bodies[0] if bodies else (start, end)
        functions.append((last, Function(len(functions), file, *body, planted)))
    for mutant in mutants:
        mutant.home = next(function for (file, start, end), function in functions
                           if file == mutant.file and start <= mutant.start and mutant.end <= end)
        mutant.home.mutants.append(mutant)
    return [function for _, function in functions]


def mutated(mutant, text, start, end):
    """What is between two offsets of the text, with the mutant in it."""
    return text[start:mutant.start] + mutant.replacement + text[mutant.end:end]


def plant(file, text, functions):
    """The text of a file with all mutants that are in play, and which lines belong to which."""
    parts, done, line, lines = [], 0, 1, []

    def write(part, owner=None):
        nonlocal line
        parts.append(part)
        begun, line = line, line + part.count("\n")
        if owner is not None:
            lines.append((begun, line, owner))

    for function in sorted(functions, key=lambda function: function.start):
        arms = [mutant for mutant in function.mutants if mutant.verdict is None]
        if function.file != file or not function.planted or not arms:
            continue
        write(text[done:function.start])
        write(f"match crate::mutant::at({function.number}) {{\n", function)
        for mutant in arms:
            write(f"{mutant.number} => {{\n", function)
            write(mutated(mutant, text, function.start, function.end), mutant)
            write("\n}\n", function)
        write("_ => {\n", function)
        write(text[function.start:function.end], function)
        write("\n}\n}", function)
        done = function.end
    write(text[done:])
    return "".join(parts), lines


def write_tree(tree, texts, functions, put):
    """Writes the files with their mutants. Returns which lines belong to which, for each file."""
    owners = {}
    for file, text in texts.items():
        content, owners[file] = plant(file, text, functions)
        if file == "src/lib.rs":
            content += "\nmod mutant;\n"
        put(tree / file, content.encode())
    put(tree / "src/mutant.rs", (MODULE % (len(functions), len(functions))).encode())
    return owners


def refused(output, owners):
    """The mutants, or whole functions, in whose lines the compiler's errors are."""
    found, elsewhere = [], []
    for record in output.splitlines():
        message = json.loads(record).get("message") if record.startswith("{") else None
        if not isinstance(message, dict) or message.get("level") != "error":
            continue
        for span in message["spans"]:
            if not span["is_primary"]:
                continue
            while span["expansion"] and span["file_name"] not in owners:
                span = span["expansion"]["span"]
            at = span["line_start"]
            owner = [owner for begin, end, owner in owners.get(span["file_name"], [])
                     if begin <= at <= end]
            # On the line on which one ends and the next begins, the mutant is meant.
            mutants = [it for it in owner if not isinstance(it, Function)]
            found += mutants or owner[:1]
            if not owner:
                elsewhere.append(message["rendered"])
    return found, elsewhere
