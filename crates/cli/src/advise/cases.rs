//! The cases, and what to do in each.

use clap::builder::PossibleValuesParser;

/// A thing that people take a lock for, and what they need.
#[derive(Debug)]
pub(crate) struct Case {
    /// What it is called on the command line.
    pub(crate) id: &'static str,
    /// What it is, in a line.
    pub(crate) about: &'static str,
    /// What to use.
    pub(crate) mechanism: &'static str,
    /// Whether that is, or has in it, a lock.
    pub(crate) lock: bool,
    /// Why, in two sentences.
    pub(crate) because: &'static str,
    /// What one might take for granted, and is not.
    pub(crate) not_given: &'static str,
    /// What to begin with.
    pub(crate) start: &'static [Start],
    /// Where to read on.
    pub(crate) page: &'static str,
}

/// Something to begin with.
#[derive(Debug)]
pub(crate) enum Start {
    /// A command.
    Shell(&'static str),
    /// Some code.
    Rust(&'static str),
    /// A statement for a database, or for Redis.
    Statement(&'static str),
}

impl Start {
    pub(crate) const fn text(&self) -> &'static str {
        match self {
            Self::Shell(text) | Self::Rust(text) | Self::Statement(text) => text,
        }
    }

    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Shell(_) => "shell",
            Self::Rust(_) => "rust",
            Self::Statement(_) => "statement",
        }
    }
}

/// The case with this name.
pub(crate) fn find(id: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.id == id)
}

/// For the command line: all names, so that help and completions have them.
pub(crate) fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(CASES.iter().map(|case| case.id))
}

use Start::{Rust, Shell, Statement};

/// Those with a lock first.
pub(crate) const CASES: &[Case] = &[
    Case {
        id: "cache-stampede",
        about: "many callers miss the same cache entry at once",
        mechanism: "single flight: one computes, the others wait for its value or take the old one",
        lock: true,
        because: "A second computation is a waste and no harm, so any store will do. The value is kept for \
                  all, so nobody stands in line for a lock only to find the work done.",
        not_given: "A value of more than 64 KiB: compute where it lies instead. And not exactly one \
                    computation, if the store forgets.",
        start: &[
            Rust(
                "let prices = fp.single_flight(\"prices\").keep(Duration::from_mins(1));\n\
                 let value = prices.get_or(compute_prices).await?;",
            ),
            Shell(
                "fencepost once --on URL --may-repeat --keep-output --keep 60s prices -- ./compute-prices",
            ),
        ],
        page: "docs/once.md",
    },
    Case {
        id: "nightly-billing",
        about: "a job that shall run once per night, on whichever host comes first",
        mechanism: "once per key, with the day in the key",
        lock: true,
        because: "A lock only keeps two from running at once: the host whose clock is late would take it \
                  next, and bill again. What is needed is a record that it is done, kept longer than the \
                  clocks differ.",
        not_given: "One effect, if a runner dies after the effect and before the record: then it is repeated. \
                    Where the effect is a transaction, put the mark into it (done_in); else make each \
                    invoice unique.",
        start: &[
            Shell("fencepost once --on URL \"billing/$(date +%F)\" -- ./billing"),
            Rust(
                "let billing = fp.once(\"billing/2026-11-16\");\n\
                 let ran = billing.run(|run| bill_all(run.token())).await?.ran;",
            ),
        ],
        page: "docs/once.md",
    },
    Case {
        id: "one-scheduler",
        about: "a service of which one instance is active and the others stand by",
        mechanism: "an election; the term is a fencing token",
        lock: true,
        because: "The leader is renewed while it lives and replaced when it does not, and others can ask who \
                  it is. Each term is higher than those before, so whatever the leader writes to can refuse \
                  the last one.",
        not_given: "One leader at every instant in the eyes of the world: one that froze may still send what it \
                    had begun. Send FENCEPOST_TOKEN with every write, and check it there.",
        start: &[
            Shell("fencepost elect --on URL scheduler --value \"$HOSTNAME:8080\" -- ./scheduler"),
            Shell("fencepost leader --on URL scheduler"),
            Rust(
                "let scheduler = fp.election(\"scheduler\");\n\
                 scheduler.lead(\"10.0.0.7:8080\", schedule).await?;",
            ),
        ],
        page: "docs/election.md",
    },
    Case {
        id: "import-claim",
        about: "a list of files or items, each to be worked on by one of many workers, once",
        mechanism: "claims: each item is a key that is done once",
        lock: true,
        because: "Two workers never have the same item, and one whose worker died is free again when its lease \
                  ends. What is done stays done, so a list can be walked again and again.",
        not_given: "An order between workers, and one effect over a crash: see nightly-billing. For many \
                    thousand items an hour take a queue.",
        start: &[
            Rust(
                "let imports = fp.claim([\"import/a.csv\", \"import/b.csv\"]);\n\
                 while let Some(turn) = imports.take().await? {\n    \
                 import(turn.key()).await?;\n    \
                 turn.done(\"\").await?;\n\
                 }",
            ),
            Shell("fencepost once --on URL --no-wait \"import/$file\" -- ./import \"$file\""),
        ],
        page: "docs/once.md",
    },
    Case {
        id: "read-modify-write",
        about: "work that reads a database, takes its time, and writes several rows",
        mechanism: "a lock for correctness, and a fence in the database",
        lock: true,
        because: "The lock keeps others from starting on what is about to change. The fence refuses the write \
                  of a holder that froze past its lease, which no lock can.",
        not_given: "Anything, from the lock alone: without the fence a pause at the wrong moment loses an \
                    update (fencepost lab pause).",
        start: &[
            Shell("fencepost run --on URL --for correctness account/42 -- ./transfer 42"),
            Shell("fencepost fence protect account --name-from lock_name"),
        ],
        page: "docs/fence-your-database.md",
    },
    Case {
        id: "file-write",
        about: "programs on one host that replace the same file",
        mechanism: "a lock in the embedded store, and the file's fence",
        lock: true,
        because: "Nothing needs to be installed, and a holder that dies is noticed at once. The fence writes a \
                  whole file or none, and refuses one that is late.",
        not_given: "Anything on a network file system, where both are refused.",
        start: &[Shell(
            "fencepost run report -- sh -c './report > new && fencepost fence write r.json --name report < new'",
        )],
        page: "docs/fences/files.md",
    },
    Case {
        id: "external-api",
        about: "a call to somebody else that must not be made twice: a payment, a mail",
        mechanism: "an idempotency key that the other side checks, and once around the call",
        lock: true,
        because: "Only the other side can refuse the second call: a crash between the call and our record looks \
                  the same to us as one before the call. The record keeps the fleet from trying again and again.",
        not_given: "One call, if the other side takes no key: then choose between at least one (as here) and at \
                    most one (record it first).",
        start: &[
            Shell(
                "fencepost once --on URL --record-failure charge/42 -- ./charge --idempotency-key charge/42",
            ),
            Rust(
                "let charge = fp.once(\"charge/42\").on_failure(OnFailure::Record);\n\
                 let receipt = charge.run(|_| pay(\"charge/42\")).await?.result;",
            ),
        ],
        page: "docs/once.md",
    },
    Case {
        id: "migration",
        about: "a change of the database's schema, when many instances start together",
        mechanism: "a lock around the tool that keeps the list of what was applied",
        lock: true,
        because: "The tool's own table says what was done, in the transaction that did it. The lock only keeps \
                  two from starting the same step, which many databases can not roll back.",
        not_given: "A way back: a step that is half done in a database without transactional DDL stays so.",
        start: &[Shell("fencepost run --on URL --for correctness schema/shop -- ./migrate up")],
        page: "docs/which-lock.md",
    },
    Case {
        id: "deployment",
        about: "one deployment of a service at a time",
        mechanism: "a lock, waited for in line",
        lock: true,
        because: "Deployments by two people shall come one after the other, and see each other's. They are \
                  rare, so any store that all of them reach is fast enough.",
        not_given: "A stop to what the first one has sent out already, if it is frozen and overtaken.",
        start: &[Shell("fencepost run --on URL --wait 30m deploy/shop -- ./deploy shop")],
        page: "docs/which-lock.md",
    },
    Case {
        id: "seat-checkout",
        about: "one row that two people want: a seat, the last item, a document",
        mechanism: "a conditional write on a version (cas)",
        lock: false,
        because: "All that must stay whole is in one row, so the row's version does what a lock and a fence \
                  would. Nothing is held while a person thinks, so nothing expires.",
        not_given: "A reservation: who comes second learns it at the end, and begins again. And nothing outside \
                    the row: for the payment see external-api.",
        start: &[
            Rust(
                "let seat = Row { table: \"seat\", key: \"id\", guard: \"version\" };\n\
                 let swap = cas::sqlite::swap(&db, &seat, &\"12A\", seen, &[(\"taken_by\", &\"ada\")])?;",
            ),
            Statement(
                "UPDATE seat SET taken_by = 'ada', version = version + 1 WHERE id = '12A' AND version = 7",
            ),
        ],
        page: "docs/fence-your-database.md",
    },
    Case {
        id: "unique-name",
        about: "two users who ask for the same name, or two requests that create the same thing",
        mechanism: "a unique constraint",
        lock: false,
        because: "The database refuses the second one in the same step that would write it. A lock would have to \
                  be right every time, and the constraint would still be needed for the time that it is not.",
        not_given: "A wait: who comes second gets an error, and must be told.",
        start: &[
            Statement("CREATE UNIQUE INDEX one_per_name ON account (name)"),
            Statement(
                "INSERT INTO account (name) VALUES ('ada') ON CONFLICT DO NOTHING RETURNING id",
            ),
        ],
        page: "docs/which-lock.md",
    },
    Case {
        id: "webhook",
        about: "a message or request that may come twice",
        mechanism: "an idempotent write: the message's id is a unique key, in the transaction of its effect",
        lock: false,
        because: "If the id is there, the effect is there too, so a second delivery changes nothing. Nothing has \
                  to be held, and nothing is left over by a crash.",
        not_given: "An effect outside of that transaction: see external-api.",
        start: &[Statement(
            "INSERT INTO seen (message_id) VALUES ('evt_42') ON CONFLICT DO NOTHING",
        )],
        page: "docs/which-lock.md",
    },
    Case {
        id: "counter",
        about: "a number that many change",
        mechanism: "one statement that adds",
        lock: false,
        because: "The statement reads and writes in one step at the store, and the store puts such steps in \
                  order. A lock would add two round trips and a way to fail.",
        not_given: "One addition per request, if requests are sent again: see webhook.",
        start: &[
            Statement("UPDATE counter SET n = n + 1 WHERE id = 'visits' RETURNING n"),
            Statement("INCR visits"),
        ],
        page: "docs/which-lock.md",
    },
    Case {
        id: "rate-limit",
        about: "at most so many calls in a span of time, over all processes",
        mechanism: "a counter that expires, in Redis",
        lock: false,
        because: "A lock makes callers wait in line, and a limit shall turn them away. To count is one step, and \
                  a count that is lost in a crash lets a few more through.",
        not_given: "An exact limit over the edge of a window; a script with a sliding one has that.",
        start: &[Statement("SET calls:42:1200 0 EX 60 NX"), Statement("INCR calls:42:1200")],
        page: "docs/which-lock.md",
    },
    Case {
        id: "queue-consumer",
        about: "messages of one customer that must be handled one after the other",
        mechanism: "one consumer per partition of the queue, with the customer as the key",
        lock: false,
        because: "The queue gives each partition to one consumer, so those of one customer stay in order without \
                  a lock. Where the queue is a table, FOR UPDATE SKIP LOCKED gives each row to one worker.",
        not_given: "One delivery: when a consumer is replaced the last messages come again, so handle them as \
                    webhook does.",
        start: &[Statement(
            "SELECT id, body FROM job WHERE done_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED",
        )],
        page: "docs/which-lock.md",
    },
];
