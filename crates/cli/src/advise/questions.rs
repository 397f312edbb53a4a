//! At most four questions, and the rules that make a case of the answers.

use super::cases::{self, CASES, Case};

/// A question with a few answers to choose from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) text: &'static str,
    pub(crate) choices: &'static [&'static str],
}

const PROTECTS: Question = Question {
    text: "What does it protect?",
    choices: &[
        "a value that many compute or fetch",
        "a job that shall run once: per day, per order, per version",
        "a service of which one instance shall be active",
        "a list of items, each for one worker",
        "data in a database",
        "a file on one host",
        "something outside: a payment, a mail, another service",
    ],
};
const VALUE: usize = 0;
const JOB: usize = 1;
const SERVICE: usize = 2;
const ITEMS: usize = 3;
const DATA: usize = 4;
const FILE: usize = 5;

const COST: Question = Question {
    text: "What does it cost if two do it at the same time, or one after the other?",
    choices: &["wasted work", "harm: money, lost updates, confused customers"],
};
const HARM: usize = 1;

const CHECK: Question = Question {
    text: "What can the resource check in the same step in which it writes?",
    choices: &[
        "a version, a unique key, or a request's id",
        "a fencing token: it can remember the highest it has seen",
        "nothing",
    ],
};
const CONDITION: usize = 0;
const TOKEN: usize = 1;

const HOSTS: Question = Question {
    text: "Where do those run who compete?",
    choices: &["all on one host", "on several hosts"],
};
const ONE_HOST: usize = 0;

/// What was answered so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    protects: Option<usize>,
    cost: Option<usize>,
    check: Option<usize>,
    hosts: Option<usize>,
}

/// What comes out.
#[derive(Debug)]
pub(crate) struct Advice {
    pub(crate) case: &'static Case,
    /// What to mind besides.
    pub(crate) notes: Vec<&'static str>,
}

impl Answers {
    /// What still has to be known.
    pub(crate) fn wanted(&self) -> Option<&'static Question> {
        let Some(protects) = self.protects else { return Some(&PROTECTS) };
        // These two are the same whatever a double run costs.
        if protects != VALUE && protects != FILE {
            if self.cost.is_none() {
                return Some(&COST);
            }
            if self.check.is_none() && (self.cost == Some(HARM) || protects == DATA) {
                return Some(&CHECK);
            }
        }
        let needs_store = self.case().lock && protects != FILE;
        (needs_store && self.hosts.is_none()).then_some(&HOSTS)
    }

    /// Takes in an answer to that.
    pub(crate) fn answer(&mut self, question: &Question, choice: usize) {
        let place = match question {
            question if *question == PROTECTS => &mut self.protects,
            question if *question == COST => &mut self.cost,
            question if *question == CHECK => &mut self.check,
            _ => &mut self.hosts,
        };
        *place = Some(choice);
    }

    /// The case that these answers are most like.
    fn case(&self) -> &'static Case {
        let condition = self.check == Some(CONDITION);
        let id = match self.protects {
            Some(VALUE) => "cache-stampede",
            Some(JOB | ITEMS) if condition => "webhook",
            Some(JOB) => "nightly-billing",
            Some(SERVICE) => "one-scheduler",
            Some(ITEMS) => "import-claim",
            Some(DATA) if condition => "seat-checkout",
            Some(DATA) => "read-modify-write",
            Some(FILE) => "file-write",
            _ => "external-api",
        };
        cases::find(id).unwrap_or(&CASES[0])
    }

    /// What to do.
    pub(crate) fn advice(&self) -> Advice {
        let case = self.case();
        let mut notes = Vec::new();
        let harm = self.cost == Some(HARM);
        if harm && self.check == Some(TOKEN) {
            notes.push(
                "Enter the resource with FENCEPOST_TOKEN before you read it: fencepost fence --help.",
            );
        }
        if harm && self.check > Some(TOKEN) {
            notes.push(
                "What checks nothing can not be protected from a holder that froze: put something in front of \
                 it that does (fencepost fence proxy), or make a double run harmless.",
            );
        }
        if !harm && case.start.iter().any(|start| start.text().contains("--for correctness")) {
            notes.push("A double run is no harm here: leave out --for correctness.");
        }
        match (self.hosts, harm) {
            (Some(ONE_HOST), _) => {
                notes.push("On one host the embedded store will do: nothing to install, no --on.");
            }
            (Some(_), true) => notes.push(
                "Take etcd:, zookeeper: or a synced postgres:. `fencepost explain URL` says what yours is \
                 worth, and --for correctness refuses one that may forget.",
            ),
            (Some(_), false) => {
                notes.push("Any store that all of them reach will do: take the one you have.");
            }
            (None, _) => {}
        }
        Advice { case, notes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way through the questions.
    fn walk(answers: &Answers, asked: usize, visit: &mut impl FnMut(&Answers, usize)) {
        let Some(question) = answers.wanted() else { return visit(answers, asked) };
        for choice in 0..question.choices.len() {
            let mut next = answers.clone();
            next.answer(question, choice);
            walk(&next, asked + 1, visit);
        }
    }

    #[test]
    fn every_way_ends_after_at_most_four_questions() {
        let (mut ways, mut without_lock, mut most) = (0, 0, 0);
        walk(&Answers::default(), 0, &mut |answers, asked| {
            let advice = answers.advice();
            ways += 1;
            most = most.max(asked);
            without_lock += usize::from(!advice.case.lock);
            assert_eq!(
                advice.notes.is_empty(),
                !advice.case.lock || answers.protects == Some(FILE)
            );
        });
        assert_eq!(most, 4);
        assert!(ways > 20 && without_lock >= 3, "{ways} ways, {without_lock} without a lock");
    }

    #[test]
    fn harm_without_a_check_is_said() {
        walk(&Answers::default(), 0, &mut |answers, _| {
            if answers.cost == Some(HARM) && answers.check == Some(2) {
                let notes = answers.advice().notes.join(" ");
                assert!(notes.contains("can not be protected"), "{answers:?}: {notes}");
            }
        });
    }
}
