//! At most four questions, and the rules that choose a case from the answers.

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
        "a job that must run once: per day, per order, per version",
        "a service of which one instance must be active",
        "a list of items, each for one worker",
        "data in a database",
        "a file on one host",
        "an external service: a payment, a mail, an API",
    ],
};
const VALUE: usize = 0;
const JOB: usize = 1;
const SERVICE: usize = 2;
const ITEMS: usize = 3;
const DATA: usize = 4;
const FILE: usize = 5;

const COST: Question = Question {
    text: "What happens if two do it at the same time, or one after the other?",
    choices: &["wasted work", "harm: money, lost updates, confused customers"],
};
const HARM: usize = 1;

const CHECK: Question = Question {
    text: "What can the resource check in the same step in which it writes?",
    choices: &[
        "a version, a unique key, or a request's id",
        "a fencing token: it can store the highest one",
        "nothing",
    ],
};
const CONDITION: usize = 0;
const TOKEN: usize = 1;

const HOSTS: Question = Question {
    text: "Where do the competing processes run?",
    choices: &["all on one host", "on several hosts"],
};
const ONE_HOST: usize = 0;

/// The answers so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    protects: Option<usize>,
    cost: Option<usize>,
    check: Option<usize>,
    hosts: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct Advice {
    pub(crate) case: &'static Case,
    /// What else depends on the answers.
    pub(crate) notes: Vec<&'static str>,
}

impl Answers {
    /// The next question, if the answers do not yet decide the advice.
    pub(crate) fn next_question(&self) -> Option<&'static Question> {
        let Some(protects) = self.protects else { return Some(&PROTECTS) };
        // For these two the cost of a double run does not matter.
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

    pub(crate) fn answer(&mut self, question: &Question, choice: usize) {
        let answer = match question {
            question if *question == PROTECTS => &mut self.protects,
            question if *question == COST => &mut self.cost,
            question if *question == CHECK => &mut self.check,
            _ => &mut self.hosts,
        };
        *answer = Some(choice);
    }

    /// The case that is closest to the answers.
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
                "A resource that checks nothing cannot be protected from a holder that froze: put a gateway that \
                 checks in front of it (fencepost fence proxy), or make a double run harmless.",
            );
        }
        if !harm && case.start.iter().any(|start| start.text().contains("--for correctness")) {
            notes.push("A double run does no harm here: leave out --for correctness.");
        }
        match (self.hosts, harm) {
            (Some(ONE_HOST), _) => {
                notes.push("On one host the embedded store is enough: nothing to install, no --on.");
            }
            (Some(_), true) => notes.push(
                "Use etcd:, zookeeper: or a synced postgres:. `fencepost explain URL` shows what your store \
                 guarantees, and --for correctness refuses one that can lose a lock.",
            ),
            (Some(_), false) => {
                notes.push("Any store that all processes can reach is enough: use the one you have.");
            }
            (None, _) => {}
        }
        Advice { case, notes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Visits every path through the questions.
    fn walk(answers: &Answers, asked: usize, visit: &mut impl FnMut(&Answers, usize)) {
        let Some(question) = answers.next_question() else { return visit(answers, asked) };
        for choice in 0..question.choices.len() {
            let mut next = answers.clone();
            next.answer(question, choice);
            walk(&next, asked + 1, visit);
        }
    }

    #[test]
    fn advice_needs_at_most_four_questions() {
        let (mut paths, mut without_lock, mut most) = (0, 0, 0);
        walk(&Answers::default(), 0, &mut |answers, asked| {
            let advice = answers.advice();
            paths += 1;
            most = most.max(asked);
            without_lock += usize::from(!advice.case.lock);
            assert_eq!(
                advice.notes.is_empty(),
                !advice.case.lock || answers.protects == Some(FILE)
            );
        });
        assert_eq!(most, 4);
        assert!(paths > 20 && without_lock >= 3, "{paths} paths, {without_lock} without a lock");
    }

    #[test]
    fn harm_without_a_check_is_noted() {
        walk(&Answers::default(), 0, &mut |answers, _| {
            if answers.cost == Some(HARM) && answers.check == Some(2) {
                let notes = answers.advice().notes.join(" ");
                assert!(notes.contains("cannot be protected"), "{answers:?}: {notes}");
            }
        });
    }
}
