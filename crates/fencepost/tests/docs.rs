//! The docs show what `guarantees()` says, word for word. `UPDATE_DOCS=1 cargo test --test docs` rewrites.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fmt::Write as _;
use std::path::Path;

use fencepost::Fencepost;
use fencepost::guarantees::{Correctness, Guarantees};

const START: &str = "<!-- from guarantees(), checked by tests -->\n";
const END: &str = "<!-- end -->";

fn check(page: &str, generated: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(START).expect("the page has a marked section");
    let (section, after) = rest.split_once(END).expect("the section ends");
    if section == generated {
        return;
    }
    assert!(
        std::env::var_os("UPDATE_DOCS").is_some(),
        "docs/{page} differs from guarantees(); run UPDATE_DOCS=1 cargo test --test docs"
    );
    std::fs::write(path, format!("{before}{START}{generated}{END}{after}")).unwrap();
}

#[tokio::test]
async fn the_docs_agree_with_the_code() {
    let directory = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", directory.path().join("locks.db").display());
    let mut stores: Vec<Guarantees> = Vec::new();
    for url in [sqlite.as_str(), "memory:"] {
        stores.push(Fencepost::connect(url).await.unwrap().guarantees());
    }
    let mut overview = String::from(
        "| store | reaches | for correctness | waiters | a lease ends by |\n|---|---|---|---|---|\n",
    );
    for store in &stores {
        check(&format!("backends/{}.md", store.backend), &store.markdown());
        let fit = if store.correctness == Correctness::Fit { "yes" } else { "no" };
        let order = if store.fifo { "FIFO" } else { "no order" };
        let (name, scope, clock) = (store.backend, store.scope, store.clock);
        writeln!(
            overview,
            "| [`{name}:`](backends/{name}.md) | {scope} | {fit} | {order} | {clock} |"
        )
        .unwrap();
    }
    check("guarantees.md", &overview);
}
