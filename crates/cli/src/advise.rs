//! `advise`: recommends a mechanism, and says whether a lock is needed at all. It is data (`cases`) and a few rules
//! (`questions`), and needs no store.

pub(crate) mod cases;
#[cfg(test)]
mod code;
mod questions;

use std::io::{IsTerminal as _, Write as _};

use serde_json::{Value, json};

use self::cases::CASES;
use self::questions::{Advice, Answers, Question};
use crate::args::advise::Advise;
use crate::exit::Failure;
use crate::out;

/// Prints the advice for the case that is given, else asks questions first.
pub(crate) fn advise(args: &Advise, json: bool) -> Result<u8, Failure> {
    let advice = match args.case.as_deref().and_then(cases::find) {
        Some(case) => Advice { case, notes: Vec::new() },
        None if std::io::stdin().is_terminal() => ask()?,
        None => return Err(list(json)?),
    };
    if json {
        return out::json(&as_json(&advice));
    }
    out::done(&as_text(&advice))
}

/// Lists the cases, because there is no terminal to ask on.
fn list(json: bool) -> Result<Failure, Failure> {
    if json {
        let cases: Vec<Value> =
            CASES.iter().map(|case| json!({ "case": case.id, "about": case.about })).collect();
        out::json(&json!({ "cases": cases }))?;
    } else {
        let rows: Vec<_> =
            CASES.iter().map(|case| vec![case.id.to_owned(), case.about.to_owned()]).collect();
        out::print(&out::table(&rows))?;
    }
    let failure = Failure::usage(
        "no terminal to ask on: name the case that is closest to yours, as in \
         `fencepost advise --case nightly-billing`",
    );
    Ok(failure.off_stdout())
}

/// Asks until the answer is known.
fn ask() -> Result<Advice, Failure> {
    let mut answers = Answers::default();
    while let Some(question) = answers.next_question() {
        let choice = choose(question)?;
        answers.answer(question, choice);
    }
    Ok(answers.advice())
}

/// Asks one question, and returns the index of the choice.
fn choose(question: &Question) -> Result<usize, Failure> {
    let mut stderr = std::io::stderr();
    let mut text = format!("{}\n", question.text);
    for (number, choice) in question.choices.iter().enumerate() {
        text.extend(["  ", &(number + 1).to_string(), "  ", choice, "\n"]);
    }
    stderr.write_all(text.as_bytes())?;
    loop {
        write!(stderr, "1-{}: ", question.choices.len())?;
        stderr.flush()?;
        let mut line = String::new();
        if std::io::stdin().read_line(&mut line)? == 0 {
            return Err(Failure::usage("no answer was given: name a case with --case instead"));
        }
        let number = line.trim().parse().unwrap_or(0);
        if (1..=question.choices.len()).contains(&number) {
            return Ok(number - 1);
        }
    }
}

fn as_text(advice: &Advice) -> String {
    let case = advice.case;
    let mut text = format!("{}: {}\n\n", case.id, case.about);
    text.push_str(&paragraph("use", case.mechanism));
    text.push_str(&paragraph("lock", if case.lock { "yes" } else { "you need no lock" }));
    text.push_str(&paragraph("why", case.because));
    text.push_str(&paragraph("not given", case.not_given));
    for note in &advice.notes {
        text.push_str(&paragraph("note", note));
    }
    text.push_str("\nstart from\n");
    for start in case.start {
        text.push('\n');
        for line in start.text().lines() {
            text.extend(["    ", line, "\n"]);
        }
    }
    if case.start.iter().any(|start| start.text().contains("--on URL")) {
        text.push('\n');
        text.push_str(&paragraph(
            "URL",
            "the store that all processes share, the same on every host. Without it, each user on each host has a \
             separate file, and they do not exclude each other.",
        ));
    }
    text.extend(["\nmore in ", case.page, "\n"]);
    text
}

fn as_json(advice: &Advice) -> Value {
    let case = advice.case;
    let start: Vec<Value> = case
        .start
        .iter()
        .map(|start| json!({ "kind": start.kind(), "text": start.text() }))
        .collect();
    json!({
        "case": case.id,
        "about": case.about,
        "mechanism": case.mechanism,
        "lock": case.lock,
        "because": case.because,
        "not_given": case.not_given,
        "notes": advice.notes,
        "start": start,
        "more": case.page,
    })
}

/// A word, and beside it a text that is wrapped.
fn paragraph(word: &str, text: &str) -> String {
    const MARGIN: usize = 11;
    format!("{word:<MARGIN$}{}", out::wrapped(text, MARGIN))
}

#[cfg(test)]
mod tests {
    use super::cases::Start;
    use super::*;
    use crate::args::Cli;
    use clap::Parser as _;

    /// Splits a line into words as a shell does, without expansions.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quote, mut depth) = (Vec::new(), String::new(), None, 0);
        for c in line.chars().chain([' ']) {
            match (c, quote) {
                ('(', None) => depth += 1,
                (')', None) => depth -= 1,
                (c, Some(open)) if c == open => quote = None,
                ('\'' | '"', None) => quote = Some(c),
                (' ', None) if depth == 0 => {
                    if !word.is_empty() {
                        words.push(std::mem::take(&mut word));
                    }
                }
                _ => word.push(c),
            }
        }
        words
    }

    #[test]
    fn advised_commands_parse() {
        let mut parsed = 0;
        for case in CASES {
            for start in case.start {
                let Start::Shell(line) = start else { continue };
                let line = words(line);
                assert_eq!(line[0], "fencepost", "{line:?}");
                let cli = Cli::try_parse_from(&line);
                assert!(cli.is_ok(), "{}: {line:?}: {}", case.id, cli.unwrap_err());
                parsed += 1;
            }
        }
        assert!(parsed >= 10, "{parsed} commands were parsed");
        assert!(Cli::try_parse_from(words("fencepost ones billing -- x")).is_err());
    }

    /// All Rust code that is advised is also in `code.rs`, which is compiled.
    #[test]
    fn advised_code_compiles() {
        let flat = |text: &str| {
            text.lines()
                .map(str::trim)
                .filter(|line| !line.is_empty())
                .collect::<Vec<_>>()
                .join("\n")
        };
        let compiled = flat(include_str!("advise/code.rs"));
        for case in CASES {
            for start in case.start {
                if let Start::Rust(code) = start {
                    assert!(compiled.contains(&flat(code)), "{}: not in code.rs:\n{code}", case.id);
                }
            }
        }
    }

    #[test]
    fn docs_page_has_every_case() {
        let page = include_str!("../../../docs/which-lock.md");
        for case in CASES {
            assert!(page.contains(&format!("| `{}` |", case.id)), "{} is missing", case.id);
        }
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        assert_eq!(rows.count(), CASES.len(), "the page has cases that do not exist");
    }

    #[test]
    fn paragraph_wraps_between_words() {
        let text = paragraph("why", &"word ".repeat(40));
        assert!(text.lines().count() > 2);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("           word")), "{text}");
    }
}
