use proptest::prelude::*;

use super::*;

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// A record of the run with token 5.
fn found(state: State) -> RecordInfo {
    let name = LockName::new("once/a").unwrap();
    let (label, result) = (Label::new("five").unwrap(), b"five".to_vec());
    let (since, kept_for) = (Duration::from_secs(1), Duration::from_secs(2));
    RecordInfo { name, state, token: token(5), label, result, since, kept_for }
}

fn claim_by(number: u64) -> Claim {
    let (name, label) = (LockName::new("once/a").unwrap(), Label::new("me").unwrap());
    Claim { name, token: token(number), label, retention: Duration::from_hours(1) }
}

fn finish_by(number: u64, outcome: Outcome, precondition: Precondition) -> Completion {
    let Claim { name, token, label, .. } = claim_by(number);
    Completion { name, token, label, outcome, retention: Duration::from_secs(9), precondition }
}

fn done() -> Outcome {
    Outcome::Done(b"x".to_vec())
}

fn failed() -> Outcome {
    Outcome::Failed(b"y".to_vec())
}

#[test]
fn claim_takes_what_is_absent_or_running_under_no_higher_token() {
    for (state, number, takes) in [
        (None, 1, true),
        (Some(State::Running), 4, false),
        (Some(State::Running), 5, true),
        (Some(State::Running), 6, true),
    ] {
        let expected = if takes {
            let (state, token, label) = (State::Running, token(number), Label::new("me").unwrap());
            let (result, retention) = (Vec::new(), Duration::from_hours(1));
            Decision::Write(Record { state, token, label, result, retention }, Claimed::Ours)
        } else {
            Decision::Answer(Claimed::Overtaken)
        };
        assert_eq!(claim(state.map(found), &claim_by(number)), expected, "{state:?} {number}");
    }
}

#[test]
fn claim_returns_a_finished_record_to_every_token() {
    for state in [State::Done, State::Failed] {
        for number in [4, 5, 6] {
            let expected = Decision::Answer(Claimed::Finished(found(state)));
            assert_eq!(claim(Some(found(state)), &claim_by(number)), expected);
        }
    }
}

/// What a finish does, as a word.
fn finished(state: Option<State>, past: Past, finish: &Completion) -> &'static str {
    match super::finish(state.map(found).as_ref(), past, finish) {
        Decision::Write(record, true) => {
            let (state, result) = match &finish.outcome {
                Outcome::Done(result) => (State::Done, result),
                Outcome::Failed(message) => (State::Failed, message),
                Outcome::Abandoned => panic!("an abandoned run leaves no record"),
            };
            assert_eq!((record.state, &record.result), (state, result));
            assert_eq!((record.token, record.retention), (finish.token, finish.retention));
            assert_eq!(record.label, finish.label);
            "put"
        }
        Decision::Remove(true) => "remove",
        Decision::Answer(true) => "as it is",
        Decision::Answer(false) => "no",
        other => panic!("{other:?}"),
    }
}

#[test]
fn run_finishes_only_its_own_claim() {
    use State::{Done, Failed, Running};
    for (state, number, if_finished, if_abandoned) in [
        (None, 5, "no", "as it is"),
        (Some(Running), 4, "no", "no"),
        (Some(Running), 5, "put", "remove"),
        (Some(Running), 6, "no", "no"),
        (Some(Done), 4, "no", "no"),
        (Some(Done), 5, "as it is", "as it is"),
        (Some(Done), 6, "no", "no"),
        (Some(Failed), 4, "no", "no"),
        (Some(Failed), 5, "as it is", "as it is"),
        (Some(Failed), 6, "no", "no"),
    ] {
        let by = |outcome| finish_by(number, outcome, Precondition::OwnClaim);
        let past = Past::default();
        assert_eq!(finished(state, past, &by(done())), if_finished, "{state:?} {number}");
        assert_eq!(finished(state, past, &by(failed())), if_finished, "{state:?} {number}");
        let given_up = finished(state, past, &by(Outcome::Abandoned));
        assert_eq!(given_up, if_abandoned, "{state:?} {number}");
    }
}

#[test]
fn value_replaces_only_equal_or_lower_tokens() {
    let states = [State::Running, State::Done, State::Failed];
    let replaced = states.into_iter().flat_map(|state| {
        [(4, "no", "no"), (5, "put", "remove"), (6, "put", "remove")].map(|row| (Some(state), row))
    });
    for (state, (number, if_finished, if_abandoned)) in
        replaced.chain([(None, (5, "put", "as it is"))])
    {
        let by = |outcome| finish_by(number, outcome, Precondition::Older);
        let past = Past::default();
        assert_eq!(finished(state, past, &by(done())), if_finished, "{state:?} {number}");
        assert_eq!(finished(state, past, &by(failed())), if_finished, "{state:?} {number}");
        let given_up = finished(state, past, &by(Outcome::Abandoned));
        assert_eq!(given_up, if_abandoned, "{state:?} {number}");
    }
}

#[test]
fn retry_after_a_lost_reply_gives_the_answer_of_the_first_attempt() {
    let expired = |number| Past { finished_by: Some(token(number)), retried: false };
    let retried = Past { finished_by: None, retried: true };
    let running = Some(State::Running);
    for (state, past, number, outcome, expected) in [
        (None, expired(5), 5, done(), "as it is"),
        (None, expired(6), 5, done(), "no"),
        (running, expired(5), 6, done(), "no"),
        (running, retried, 4, Outcome::Abandoned, "as it is"),
        (running, retried, 4, done(), "no"),
        (running, Past::default(), 4, Outcome::Abandoned, "no"),
    ] {
        let finish = finish_by(number, outcome, Precondition::OwnClaim);
        assert_eq!(finished(state, past, &finish), expected, "{state:?} {past:?} {finish:?}");
    }
}

/// The smallest store there is.
#[derive(Default)]
struct Store(Option<RecordInfo>);

impl Store {
    fn carry_out<T>(&mut self, decision: Decision<T>) -> T {
        match decision {
            Decision::Answer(answer) => answer,
            Decision::Write(record, answer) => {
                let Record { state, token, label, result, .. } = record;
                self.0 = Some(RecordInfo { state, token, label, result, ..found(state) });
                answer
            }
            Decision::Remove(answer) => {
                assert!(self.0.take().is_some(), "there was nothing to delete");
                answer
            }
        }
    }

    fn claim(&mut self, number: u64) -> Claimed {
        self.carry_out(claim(self.0.clone(), &claim_by(number)))
    }

    fn finish(&mut self, by: &Completion) -> bool {
        self.carry_out(finish(self.0.as_ref(), Past::default(), by))
    }
}

#[derive(Clone, Debug)]
enum Op {
    Claim(u64),
    Completion(u64, Outcome, Precondition),
    /// It expires, or is forgotten.
    Expire,
}

/// Any order of steps, repeated ones too: runners that were paused, that were overtaken, whose replies were lost.
fn ops(
    precondition: impl Strategy<Value = Precondition> + 'static,
) -> impl Strategy<Value = Vec<Op>> {
    let outcome =
        prop_oneof![3 => Just(done()), 1 => Just(failed()), 1 => Just(Outcome::Abandoned)];
    let op = prop_oneof![
        6 => (1..6_u64).prop_map(Op::Claim),
        6 => (1..6_u64, outcome, precondition).prop_map(|(by, outcome, precondition)| Op::Completion(by, outcome, precondition)),
        1 => Just(Op::Expire),
    ];
    prop::collection::vec(op, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn at_most_one_run_is_recorded_as_done(ops in ops(Just(Precondition::OwnClaim))) {
        let mut store = Store::default();
        // The run whose success is recorded now, and the result.
        let mut recorded: Option<RecordInfo> = None;
        for op in ops {
            match op {
                Op::Claim(by) => {
                    let claimed = store.claim(by);
                    prop_assert!(recorded.is_none() || claimed != Claimed::Ours);
                }
                Op::Completion(by, outcome, precondition) => {
                    let taken = store.finish(&finish_by(by, outcome, precondition));
                    if let Some(recorded) = &recorded {
                        prop_assert_eq!(taken, recorded.token == token(by));
                    }
                }
                Op::Expire => {
                    store.0 = None;
                    recorded = None;
                }
            }
            if recorded.is_some() {
                prop_assert_eq!(&store.0, &recorded, "a finished record was changed");
            }
            recorded = store.0.clone().filter(RecordInfo::is_finished);
        }
    }

    #[test]
    fn token_of_a_record_never_falls(ops in ops(prop_oneof![Just(Precondition::OwnClaim), Just(Precondition::Older)])) {
        let mut store = Store::default();
        for op in ops {
            let before = store.0.as_ref().map(|record| record.token);
            match op {
                Op::Claim(by) => {
                    store.claim(by);
                }
                Op::Completion(by, outcome, precondition) => {
                    store.finish(&finish_by(by, outcome, precondition));
                }
                Op::Expire => store.0 = None,
            }
            let after = store.0.as_ref().map(|record| record.token);
            prop_assert!(before.is_none() || after.is_none() || before <= after);
        }
    }
}
