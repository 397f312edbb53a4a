//! A vote that arrives at a node after the release that undoes it, although the release found the waiter's position
//! there.

use fencepost_testkit::{
    LONG, Mode, Redis, Reply, SOON, Valve, connect, has, switching_proxy, until, within,
};

use crate::Nodes;

const OWNER: &str = "0123456789abcdef0123456789abcdef";

macro_rules! script {
    ($file:literal) => {
        include_str!(concat!("../../src/backends/redis/scripts/", $file))
            .replace("--COMMON--", include_str!("../../src/backends/redis/scripts/common.lua"))
    };
}

/// Runs a script with these arguments on the lock "x", and returns its status.
fn run(server: &Redis, script: &str, arguments: &[&str]) -> i64 {
    let words = ["EVAL", script, "2", "x", "fencepost:lock:{x}"];
    match server.command(&[&words[..], arguments].concat()).unwrap() {
        Reply::Int(status) => status,
        reply => reply.items().unwrap()[0].int().unwrap(),
    }
}

/// One node's scripts in the wrong order: a vote and an acceptance after their undo, and after the release.
#[test]
fn node_refuses_requests_after_their_undo() {
    let server = Redis::builder().start().unwrap();
    let (vote, accept) = (script!("vote.lua"), script!("accept.lua"));
    let (undo, release) = (script!("undo.lua"), script!("release.lua"));
    let ballot = |attempt| [OWNER, attempt, "60000", "waiter", "client"];
    let acceptance = [OWNER, "2", "9000000000000000", "60000", "waiter", "3600000"];
    // The undo of the first attempt overtakes its vote.
    assert_eq!(run(&server, &undo, &[OWNER, "1", "60000"]), 0);
    assert_eq!(run(&server, &vote, &ballot("1")), 3);
    // The same if another client has the key: the vote does not queue either.
    server.command(&["SET", "x", "theirs", "PX", "60000"]).unwrap().text().unwrap();
    assert_eq!(run(&server, &vote, &ballot("1")), 3);
    assert!(!has(&server, "fencepost:queue:{x}"), "nobody waits there");
    server.command(&["DEL", "x"]).unwrap();
    // The undo of the second overtakes its acceptance.
    assert_eq!(run(&server, &vote, &ballot("2")), 1);
    assert_eq!(run(&server, &undo, &[OWNER, "2", "60000"]), 1);
    assert_eq!(run(&server, &accept, &acceptance), 0);
    assert!(!has(&server, "x"));
    // The release overtakes the third vote, and finds a position. Without its note the vote counts for nobody.
    for noted in [false, true] {
        server.command(&["SET", "x", "theirs", "PX", "60000"]).unwrap().text().unwrap();
        assert_eq!(run(&server, &vote, &ballot("3")), 0, "it is queued");
        let arguments = [OWNER, "3600000", "60000", "unanswered"];
        assert_eq!(run(&server, &release, &arguments[..if noted { 4 } else { 3 }]), 1);
        server.command(&["DEL", "x"]).unwrap();
        assert_eq!(run(&server, &vote, &ballot("3")), if noted { 3 } else { 1 });
        assert_eq!(has(&server, "x"), !noted);
        server.command(&["DEL", "x"]).unwrap();
    }
}

/// A waiter's vote is held back on its way to one node. The waiter is cancelled. Its release reaches that node first,
/// over a new connection, and finds the position of an earlier vote.
async fn vote_is_overtaken(with_note: bool) {
    let nodes = Nodes::start(3);
    let late = &nodes.0[0];
    let valve = Valve::to(late.server.address());
    let route = switching_proxy(valve.address, late.server.address());
    let hosts = format!("{route},{},{}", nodes.0[1].shown, nodes.0[2].shown);
    let client = connect(&format!("redlock://{hosts}?restarted=vote")).await;
    let (holder, first) =
        (connect(&nodes.url("restarted=vote")).await, connect(&nodes.url("restarted=vote")).await);
    let guard = holder.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    let position = || {
        let count = late.server.command(&["HLEN", "fencepost:positions:{x}"]).unwrap();
        count.int().unwrap()
    };
    // The waiter ahead keeps the queue alive, and so the position.
    let ahead = tokio::spawn(first.lock("x").ttl(LONG).acquire());
    until("one waits at the node", async || position() == 1).await;
    let waiter = tokio::spawn(client.lock("x").ttl(LONG).acquire());
    until("two wait at the node", async || position() == 2).await;
    // Two nodes do not reply, so the attempt is still open when its waiter is cancelled, and no undo of the attempt
    // is sent.
    nodes.0[1].proxy.set_mode(Mode::Silent);
    valve.shut();
    until("a vote is held back", async || valve.held_scripts() > 0).await;
    waiter.abort();
    nodes.0[1].proxy.set_mode(Mode::Pass);
    // The position alone proves nothing: it also ends if nobody refreshes the queue.
    let noted = || {
        let pattern = format!("fencepost:withdrawn:{{x}}:{}", "?".repeat(32));
        let found = late.server.command(&["KEYS", &pattern]).unwrap();
        !found.items().unwrap().is_empty()
    };
    let released = async || position() == 1 && noted();
    until("the release arrives over the new connection", released).await;
    within(SOON, "the client has undone it", client.close()).await;
    guard.release().await.unwrap();
    let next = within(SOON, "the next is granted", ahead).await.unwrap().unwrap();
    next.release().await.unwrap();
    until("every node is free", async || nodes.with("x") == 0).await;
    if !with_note {
        let delete = "for _, key in ipairs(redis.call('KEYS', 'fencepost:withdrawn:*')) do redis.call('DEL', key) end";
        late.server.command(&["EVAL", delete, "0"]).unwrap();
    }
    let answers = valve.open();
    until("the late vote is answered", async || valve.answers() > answers).await;
    assert_eq!(has(&late.server, "x"), !with_note, "a vote for nobody");
}

#[tokio::test]
async fn vote_overtaken_by_its_release_is_refused() {
    vote_is_overtaken(true).await;
}

#[tokio::test]
async fn control_overtaken_vote_without_the_note_is_counted() {
    vote_is_overtaken(false).await;
}
