//! The keys match `docs/layouts/redis.md`, and an older layout is refused.

use fencepost::{ErrorKind, Fencepost, Token};
use fencepost_testkit::records::begin;
use fencepost_testkit::{LONG, Persistence, Redis, connect, fails, has, ms};

const PAGE: &str = include_str!("../../../../docs/layouts/redis.md");
/// The state of a lock in layout 1.
const LAYOUT_1: &str = "1795052632000041 0 - - 0 0 web-1";

fn text(server: &Redis, words: &[&str]) -> String {
    server.command(words).unwrap().text().unwrap()
}

/// Every key, with its contents and its expiry.
fn all(server: &Redis) -> String {
    let dump = "local all = {} for _, key in ipairs(redis.call('KEYS', '*')) do \
                all[#all + 1] = key .. '=' .. redis.sha1hex(redis.call('DUMP', key)) end \
                table.sort(all) return table.concat(all, ' ')";
    text(server, &["EVAL", dump, "0"])
}

async fn all_refuse(client: &Fencepost, server: &Redis, name: &str) {
    let before = all(server);
    let said = ["layout 1", "layout 2", "docs/layouts/redis.md", "above 1795052632000041"];
    fails(client.lock(name).try_acquire().await, ErrorKind::Refused, &said);
    fails(client.lock(name).acquire().await, ErrorKind::Refused, &said);
    fails(client.inspect(name).await, ErrorKind::Refused, &said);
    fails(client.break_lock(name).await, ErrorKind::Refused, &said);
    fails(client.list().await, ErrorKind::Refused, &said[..3]);
    let nobody = fencepost::OwnerId::from_bits(1);
    assert!(client.renew(name, nobody, None).await.is_err());
    assert!(client.release(name, nobody).await.is_err());
    assert_eq!(all(server), before, "nothing was written");
}

/// If it counted as empty, its tokens could start lower, and resources would refuse the new holders.
#[tokio::test]
async fn lock_of_an_older_layout_is_refused_and_unchanged() {
    for name in ["x", "{x}", "a{b}c", "a}b"] {
        let server = Redis::builder().start().unwrap();
        let client = connect(&server.url()).await;
        let key = format!("fencepost:record:{name}");
        text(&server, &["SET", &key, LAYOUT_1, "PX", "600000"]);
        all_refuse(&client, &server, name).await;
        text(&server, &["SET", name, "0123456789abcdef0123456789abcdef", "PX", "600000"]);
        all_refuse(&client, &server, name).await;
        // Other names are not affected, and the remedy works.
        client.lock("y").acquire().await.unwrap().release().await.unwrap();
        server.command(&["DEL", name, &key]).unwrap();
        let guard = client.lock(name).acquire().await.unwrap();
        assert!(guard.token() > Token::new(1).unwrap());
    }
}

#[tokio::test]
async fn newer_layout_is_refused() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    text(&server, &["SET", "fencepost:lock:{x}", &format!("3 {LAYOUT_1}")]);
    let before = all(&server);
    let said = ["layout 3", "layout 2", "update"];
    fails(client.lock("x").try_acquire().await, ErrorKind::Refused, &said);
    fails(client.inspect("x").await, ErrorKind::Refused, &said);
    assert_eq!(all(&server), before, "nothing was written");
}

/// If it counted as absent, its work would run again.
#[tokio::test]
async fn record_of_an_older_layout_is_refused_and_unchanged() {
    let server = Redis::builder().persist(Persistence::Always).start().unwrap();
    let client = connect(&server.url()).await;
    begin(&client, "k").await.done("x").await.unwrap();
    for name in ["old", "{k}"] {
        let (record, old) =
            (format!("fencepost:record:{{once/{name}}}"), format!("fencepost:once:once/{name}"));
        let fields = ["state", "done", "token", "7", "label", "me", "since", "1", "result", ""];
        server.command(&[&["HSET", &old][..], &fields].concat()).unwrap().int().unwrap();
        let said = ["layout 1", "layout 2", "run again"];
        fails(client.once(name).begin().await, ErrorKind::Refused, &said);
        fails(client.once(name).record().await, ErrorKind::Refused, &said);
        fails(client.once_records().await, ErrorKind::Refused, &said);
        assert!(!has(&server, &record), "nothing was written");
        assert_eq!(server.command(&["HLEN", &old]).unwrap().int().unwrap(), 5);
        server.command(&["DEL", &old]).unwrap();
    }
    let keys: Vec<_> =
        client.once_records().await.unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["k"]);
}

/// The page, the code and a real server agree. The page writes OWNER, CLIENT and MICROS where these stand.
#[tokio::test]
async fn keys_match_the_page() {
    let server = Redis::builder().persist(Persistence::Always).start().unwrap();
    let client = connect(&server.url()).await;
    let shown =
        |line: &str| assert!(PAGE.contains(line), "docs/layouts/redis.md does not have:\n{line}");

    let guard = client.lock("orders/7").ttl(ms(30_000)).label("web-1").acquire().await.unwrap();
    let (token, owner) = (guard.token().to_string(), guard.owner().reveal());
    let state = text(&server, &["GET", "fencepost:lock:{orders/7}"]);
    let plain = |text: &str| text.replace(&token, "TOKEN").replace(&owner, "OWNER");
    assert_eq!(token.len(), 16);
    shown(&format!(
        "GET orders/7                         \"{}\"",
        plain(&text(&server, &["GET", "orders/7"]))
    ));
    shown(&format!("GET fencepost:lock:{{orders/7}}        \"{}\"", plain(&state)));
    assert_eq!(plain(&state), "2 TOKEN 0 - OWNER 30000 0 web-1");

    let waiter = tokio::spawn(client.lock("orders/7").label("web-2").acquire());
    fencepost_testkit::until("it waits", async || has(&server, "fencepost:queue:{orders/7}")).await;
    let waiting = text(
        &server,
        &[
            "EVAL",
            "return redis.call('ZRANGE', KEYS[1], 0, 0)[1]",
            "1",
            "fencepost:queue:{orders/7}",
        ],
    );
    let position = text(&server, &["HGET", "fencepost:positions:{orders/7}", &waiting]);
    let words: Vec<_> = position.splitn(3, ' ').collect();
    assert_eq!((waiting.len(), words[0].len(), words[1].len(), words[2]), (32, 16, 32, "web-2"));
    shown("HGETALL fencepost:positions:{orders/7}   OWNER \"MICROS CLIENT web-2\"");
    shown("ZRANGE fencepost:queue:{orders/7} 0 -1 WITHSCORES   OWNER MICROS");
    waiter.abort();
    let _ = waiter.await;
    guard.release().await.unwrap();

    let _leadership = client.election("e").ttl(LONG).campaign("10.0.0.7").await.unwrap();
    let published = text(&server, &["GET", "fencepost:value:{e}"]);
    let (holder, value) = published.split_once(' ').unwrap();
    assert_eq!((holder.len(), value), (32, "0 10.0.0.7"));
    shown("GET fencepost:value:{e}              \"OWNER 0 10.0.0.7\"");

    begin(&client, "k").await.done("412 invoices").await.unwrap();
    let record = server.command(&["HGETALL", "fencepost:record:{once/k}"]).unwrap();
    let fields: Vec<_> =
        record.items().unwrap().iter().map(|field| field.text().unwrap()).collect();
    let names: Vec<_> = fields.iter().step_by(2).map(String::as_str).collect();
    assert_eq!(names, ["layout", "state", "token", "label", "since", "result"]);
    assert_eq!((&*fields[1], &*fields[3], &*fields[11]), ("2", "done", "412 invoices"));
    shown(
        "HGETALL fencepost:record:{once/k}    layout 2 state done token TOKEN label LABEL since MICROS result \"412 invoices\"",
    );

    let nobody = fencepost::OwnerId::from_bits(7);
    client.release("orders/7", nobody).await.unwrap_err();
    assert!(has(&server, &format!("fencepost:withdrawn:{{orders/7}}:{}", nobody.reveal())));
    shown("GET fencepost:withdrawn:{orders/7}:OWNER   \"\"");

    // In the slot of the lock's own key, whatever braces the name has.
    client.lock("{app}:a").acquire().await.unwrap().release().await.unwrap();
    assert!(has(&server, "fencepost:lock:{app}{app}:a"));
    shown("fencepost:lock:{app}{app}:a");
}
