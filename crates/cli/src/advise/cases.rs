//! The cases, and what to do in each.

use clap::builder::PossibleValuesParser;

/// A situation in which people think of a lock, and what they need.
#[derive(Debug)]
pub(crate) struct Case {
    /// The name for `--case`.
    pub(crate) id: &'static str,
    /// The situation, in one line.
    pub(crate) about: &'static str,
    pub(crate) mechanism: &'static str,
    /// Whether the mechanism uses a lock.
    pub(crate) lock: bool,
    /// Why, in two sentences.
    pub(crate) because: &'static str,
    /// What a reader could assume, and the mechanism does not give.
    pub(crate) not_given: &'static str,
    pub(crate) start: &'static [Start],
    /// The page to read next.
    pub(crate) page: &'static str,
}

/// Commands or code to start from.
#[derive(Debug)]
pub(crate) enum Start {
    Shell(&'static str),
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

pub(crate) fn find(id: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.id == id)
}

/// All names, for help and completions.
pub(crate) fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(CASES.iter().map(|case| case.id))
}

use Start::{Rust, Shell, Statement};

/// Those with a lock first.
pub(crate) const CASES: &[Case] = &[
    Case {
        id: "cache-stampede",
        about: "many callers miss the same cache entry at once",
        mechanism: "single flight: one computes, the others wait for its value or use the old one",
        lock: true,
        because: "A second computation is wasted work but no harm, so any store will do. The value is recorded, \
                  so later callers read it instead of waiting for a lock.",
        not_given: "Values of more than 64 KiB: store those elsewhere. Exactly one computation, if the store loses \
                    its records.",
        start: &[
            Rust(
                "let prices = fp.single_flight(\"prices\").retain_for(Duration::from_mins(1));\n\
                 let value = prices.get_or(compute_prices).await?;",
            ),
            Shell(
                "fencepost once --on URL --may-repeat --keep-output --retain-for 60s prices -- ./compute-prices",
            ),
        ],
        page: "docs/once.md",
    },
    Case {
        id: "nightly-billing",
        about: "a job that must run once per night, on whichever host is first",
        mechanism: "once per key, with the day in the key",
        lock: true,
        because: "A lock only prevents two runs at the same time: a host whose clock is late would acquire it \
                  next, and bill again. You need a record that the job is done, retained for longer than the \
                  clocks differ.",
        not_given: "Exactly one effect: if a runner dies after the effect and before the record, the job is repeated. \
                    If the effect is a transaction, write the record in it (done_in); otherwise make each \
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
        mechanism: "an election whose term is a fencing token",
        lock: true,
        because: "The leader renews while it is alive and is replaced when it is not, and other processes can read \
                  who leads. Each term is higher than the ones before, so a resource can refuse the writes of an \
                  earlier leader.",
        not_given: "A single writer at every moment: a leader that froze can still send a write that it had started. \
                    Send FENCEPOST_TOKEN with every write, and check it at the resource.",
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
        about: "a list of files or items, each to be processed once, by one of many workers",
        mechanism: "claims: each item is a key that is processed once",
        lock: true,
        because: "Two workers never have the same item, and the item of a dead worker is free when its lease ends. \
                  Finished items stay finished, so you can process the list again.",
        not_given: "An order between workers; exactly one effect after a crash (see nightly-billing). For many \
                    thousands of items per hour, use a queue.",
        start: &[
            Rust(
                "let imports = fp.claim([\"import/a.csv\", \"import/b.csv\"]);\n\
                 while let Some(claimed) = imports.take().await? {\n    \
                 import(claimed.key()).await?;\n    \
                 claimed.done(\"\").await?;\n\
                 }",
            ),
            Shell("fencepost once --on URL --no-wait \"import/$file\" -- ./import \"$file\""),
        ],
        page: "docs/once.md",
    },
    Case {
        id: "read-modify-write",
        about: "work that reads a database, computes for a while, and writes several rows",
        mechanism: "a lock for correctness, and a fence in the database",
        lock: true,
        because: "The lock keeps other workers from starting on data that is about to change. The fence refuses the \
                  write of a holder that froze past its lease, which no lock can do.",
        not_given: "Safety from the lock alone: without the fence, a pause at the wrong moment loses an update \
                    (fencepost lab pause).",
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
        because: "You install nothing, and the death of a holder is detected at once. The fence replaces the whole \
                  file or nothing, and refuses a writer with a stale token.",
        not_given: "Network file systems: lock and fence refuse them.",
        start: &[Shell(
            "fencepost run report -- sh -c './report > new && fencepost fence write r.json --name report < new'",
        )],
        page: "docs/fences/files.md",
    },
    Case {
        id: "external-api",
        about: "a call to an external service that must not happen twice: a payment, a mail",
        mechanism: "an idempotency key that the service checks, and once around the call",
        lock: true,
        because: "Only the service can refuse a second call: to you, a crash after the call looks the same as one \
                  before it. The record keeps your other hosts from repeating the call.",
        not_given: "Exactly one call, if the service takes no idempotency key: then choose between at least one (as \
                    here) and at most one (write the record first).",
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
        about: "a schema migration when many instances start together",
        mechanism: "a lock around a migration tool that records what it has applied",
        lock: true,
        because: "The tool's own table records each step in the step's transaction. The lock only keeps two \
                  instances from starting the same step, which many databases cannot roll back.",
        not_given: "A rollback: without transactional DDL, a step that fails half-way stays half done.",
        start: &[Shell("fencepost run --on URL --for correctness schema/shop -- ./migrate up")],
        page: "docs/which-lock.md",
    },
    Case {
        id: "deployment",
        about: "one deployment of a service at a time",
        mechanism: "a lock, with a wait in its queue",
        lock: true,
        because: "Two people's deployments must run one after the other, and the second must see the first. \
                  Deployments are rare, so any store that everybody can reach is fast enough.",
        not_given: "Protection from requests that a frozen deployment sent before it lost the lock.",
        start: &[Shell("fencepost run --on URL --wait 30m deploy/shop -- ./deploy shop")],
        page: "docs/which-lock.md",
    },
    Case {
        id: "seat-checkout",
        about: "one row that two people want: a seat, the last item, a document",
        mechanism: "a conditional write on a version (cas)",
        lock: false,
        because: "All data that must stay consistent is in one row, so the row's version replaces both lock and \
                  fence. Nothing is held while a person decides, so nothing expires.",
        not_given: "A reservation: the second person learns only at the end that the row was taken. Protection of \
                    anything outside the row: for the payment see external-api.",
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
        about: "two users who request the same name, or two requests that create the same thing",
        mechanism: "a unique constraint",
        lock: false,
        because: "The database refuses the second one in the step that would write it. A lock would have to work \
                  every time, and you would still need the constraint for the time that it does not.",
        not_given: "A wait: the second one gets an error, which you must handle.",
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
        about: "a message or request that can arrive twice",
        mechanism: "an idempotent write: the message's id is a unique key, in the transaction of its effect",
        lock: false,
        because: "If the id is in the table, so is the effect, and a second delivery changes nothing. Nothing is \
                  held, and a crash leaves nothing behind.",
        not_given: "Protection of effects outside that transaction: see external-api.",
        start: &[Statement(
            "INSERT INTO seen (message_id) VALUES ('evt_42') ON CONFLICT DO NOTHING",
        )],
        page: "docs/which-lock.md",
    },
    Case {
        id: "counter",
        about: "a number that many processes change",
        mechanism: "one statement that adds",
        lock: false,
        because: "The statement reads and writes in one step at the store, and the store orders such steps. A lock \
                  would add two round trips and a way to fail.",
        not_given: "One addition per request, if requests are retried: see webhook.",
        start: &[
            Statement("UPDATE counter SET n = n + 1 WHERE id = 'visits' RETURNING n"),
            Statement("INCR visits"),
        ],
        page: "docs/which-lock.md",
    },
    Case {
        id: "rate-limit",
        about: "a maximum number of calls per interval, over all processes",
        mechanism: "a counter that expires, in Redis",
        lock: false,
        because: "A lock makes callers wait, and a rate limit must reject them. Counting is one step, and a count \
                  that is lost in a crash only admits a few more calls.",
        not_given: "An exact limit across the edge of a window: use a script with a sliding window for that.",
        start: &[Statement("SET calls:42:1200 0 EX 60 NX"), Statement("INCR calls:42:1200")],
        page: "docs/which-lock.md",
    },
    Case {
        id: "queue-consumer",
        about: "messages of one customer that must be processed in order",
        mechanism: "one consumer per partition of the queue, with the customer as the key",
        lock: false,
        because: "The queue gives each partition to one consumer, so the messages of a customer stay in order without \
                  a lock. If the queue is a table, FOR UPDATE SKIP LOCKED gives each row to one worker.",
        not_given: "Exactly one delivery: when a consumer is replaced, the last messages are delivered again, so \
                    handle them as in webhook.",
        start: &[Statement(
            "SELECT id, body FROM job WHERE done_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED",
        )],
        page: "docs/which-lock.md",
    },
];
