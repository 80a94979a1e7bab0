use std::collections::BTreeMap;

use super::*;
use crate::controller::Client;
use crate::http::error::Problem;
use crate::http::extract::{assert_refused, read};

const CALLER: Caller = Caller::Client(Client { user: Some(1000), process: None, subject: None, has_control: false });

fn register(text: &str) -> Result<NewJob, Problem> {
    Ok(read::<RegisterJob>(text.as_bytes())?.asked_by(CALLER)?)
}

#[test]
fn the_documented_request_is_accepted() {
    let text = r#"{"name":"resnet50","gpus":[0,"GPU-3f","1"],"batch_size":256,"work":{"total_samples":100000000},
        "objective":{"max_slowdown":0.03,"deadline":"2026-11-21T19:00:00+01:00"},"lease_s":60,"tags":{"team":"vision"}}"#;
    let job = register(text).expect("valid");
    let expected = NewJob {
        name: JobName::new("resnet50").expect("name"),
        gpus: vec![GpuRef::Index(0), GpuRef::Id("GPU-3f".into()), GpuRef::Index(1)],
        batch_size: Some(256),
        work: Work::TotalSamples(Samples::new(1e8)),
        objective: Objective {
            eta: 1.0,
            max_slowdown: Some(0.03),
            deadline: Some("2026-11-21T18:00:00Z".parse().expect("time")),
            ..Objective::UNBOUND
        },
        lease: Some(Seconds::new(60.0)),
        control: true,
        priority: 0,
        tags: BTreeMap::from([("team".to_owned(), "vision".to_owned())]),
        processes: None,
        replaces: None,
        offers: Default::default(),
        by: CALLER,
        user: None,
    };
    assert_eq!(job, expected);
}

#[test]
fn absent_fields_have_defaults() {
    for text in [r#"{"name":"a","gpus":[0]}"#, r#"{"name":"a","gpus":[0],"work":null,"objective":{},"lease_s":null}"#] {
        let job = register(text).expect("valid");
        assert_eq!((job.work, job.objective, job.lease, job.control), (Work::Unknown, Objective::DEFAULT, None, true));
    }
    let job = register(r#"{"name":"a","gpus":[0],"control":false,"objective":{"eta":0.5}}"#).expect("valid");
    assert_eq!((job.control, job.objective.eta, job.objective.max_slowdown), (false, 0.5, None));
    let meant = |objective: &str| {
        register(&format!(r#"{{"name":"a","gpus":[0,1],"objective":{objective}}}"#)).expect("valid").objective
    };
    let grams = Some(GramsCo2e::new(500.0));
    assert_eq!(meant(r#"{"carbon_budget_g":500}"#), Objective { eta: 0.0, carbon_budget: grams, ..Objective::UNBOUND });
    let with_slowdown = meant(r#"{"carbon_budget_g":500,"max_slowdown":0.1}"#);
    assert_eq!((with_slowdown.eta, with_slowdown.carbon_budget), (1.0, grams));
    assert_eq!(meant(r#"{"price_weight":0.5}"#), Objective { price_weight: 0.5, ..Objective::DEFAULT });
    let pausable = Some(Pausing::default_for(2));
    assert_eq!(meant(r#"{"pausable":true,"max_slowdown":0.03}"#), Objective { pausable, ..Objective::DEFAULT });
    assert_eq!(meant(r#"{"pausable":{}}"#), Objective { pausable, ..Objective::DEFAULT });
    assert_eq!(meant(r#"{"pausable":false}"#), Objective::DEFAULT);
    let costs = meant(r#"{"pausable":{"idle_power_w":80,"checkpoint_s":0}}"#).pausable.expect("pausable");
    assert_eq!(
        (costs.idle_power, costs.checkpoint, costs.min_run),
        (Watts::new(80.0), Seconds::ZERO, Seconds::new(1800.0))
    );
}

#[test]
fn invalid_registrations_are_refused_with_a_hint() {
    let table = [
        (r#"{"name":"a","gpus":[0]"#, 400, None, "EOF while parsing an object, at line 1, column 22"),
        (r#"{"name":"a","gpus":[0],}"#, 400, None, "no trailing commas"),
        (r#"{"name":"a","gpus":[0]} x"#, 400, None, "trailing characters"),
        (r#"{"name":"a","gpus":[0],"lease_s":NaN}"#, 400, None, "JSON has no NaN"),
        (r#"{"name":"a","gpus":[0],"lease_s":1e999}"#, 400, None, "number out of range"),
        ("\"text\"", 422, None, "the body: invalid type: string \"text\", expected an object"),
        ("[\"a\",[0]]", 422, None, "the body: invalid type: list, expected an object"),
        (r#"{"gpus":[0]}"#, 422, Some("name"), "name: missing field `name`"),
        (r#"{"name":"a"}"#, 422, Some("gpus"), "see GET /v1/gpus"),
        (r#"{"name":7,"gpus":[0]}"#, 422, Some("name"), "invalid type: integer `7`, expected a string"),
        (r#"{"name":"","gpus":[0]}"#, 422, Some("name"), "1 to 128 characters"),
        (r#"{"name":"a","gpus":0}"#, 422, Some("gpus"), "give a list of indexes or UUIDs"),
        (r#"{"name":"a","gpus":[0,-1]}"#, 422, Some("gpus[1]"), "expected the index or the UUID of a GPU"),
        (r#"{"name":"a","gpus":[0,1.5]}"#, 422, Some("gpus[1]"), "floating point `1.5`"),
        (r#"{"name":"a","gpus":[4294967296]}"#, 422, Some("gpus[0]"), "give a list of indexes or UUIDs"),
        (r#"{"name":"a","gpus":[""]}"#, 422, Some("gpus[0]"), "expected the index or the UUID"),
        (r#"{"name":"a","gpus":[0],"batch_size":-1}"#, 422, Some("batch_size"), "more than 0, or leave it out"),
        (r#"{"name":"a","gpus":[0],"gpu":1}"#, 422, Some("gpu"), "unknown field `gpu`, expected one of `name`"),
        (r#"{"name":"a","name":"b","gpus":[0]}"#, 422, Some("name"), "duplicate field `name`"),
        (r#"{"name":"a","gpus":[0],"work":{}}"#, 422, Some("work.total_samples"), "more than 0"),
        (r#"{"name":"a","gpus":[0],"work":"all"}"#, 422, Some("work"), "leave it out if the work is unknown"),
        (r#"{"name":"a","gpus":0}"#, 422, Some("gpus"), "expected a list"),
        (r#"{"name":"a","gpus":[0],"lease_s":"1"}"#, 422, Some("lease_s"), "expected a number"),
        (r#"{"name":"a","gpus":[0],"tags":{"team":1}}"#, 422, Some("tags.team"), "give an object of texts"),
        (r#"{"name":"a","gpus":[0],"control":"no"}"#, 422, Some("control"), "give true or false"),
    ];
    assert_refused(register, &table);
    let objectives = [
        ("[0.5]", "objective", "expected an object"),
        (
            r#"{"carbon_g":5}"#,
            "objective.carbon_g",
            "expected one of `eta`, `max_slowdown`, `deadline`, `carbon_budget_g`, `price_weight`, `pausable`",
        ),
        (r#"{"carbon_budget_g":0}"#, "objective.carbon_budget_g", "more than 0 grams"),
        (r#"{"price_weight":2}"#, "objective.price_weight", "0 is carbon alone, 1 is the price alone"),
        (r#"{"carbon_budget_g":5,"price_weight":0.5}"#, "objective.price_weight", "leave the price_weight out"),
        (r#"{"eta":1,"pausable":true}"#, "objective.pausable", "needs max_slowdown or a deadline"),
        (r#"{"pausable":1}"#, "objective.pausable", "give true, false, or an object"),
        (r#"{"pausable":{"idle_w":1}}"#, "objective.pausable.idle_w", "expected one of `idle_power_w`"),
        (r#"{"pausable":{"min_run_s":-1}}"#, "objective.pausable.min_run_s", "from 0 to 86400"),
        (r#"{"eta":1.5}"#, "objective.eta", "1 is carbon alone"),
        (r#"{"eta":"1"}"#, "objective.eta", "give a number from 0"),
        (r#"{"max_slowdown":-1}"#, "objective.max_slowdown", "0.03"),
        (r#"{"deadline":"noon"}"#, "objective.deadline", "RFC 3339"),
        (
            r#"{"deadline":"2026-12-01 10:00"}"#,
            "objective.deadline",
            "it lacks seconds and a time zone; \"2026-12-01T10:00:00Z\" is one in UTC",
        ),
        (
            r#"{"carbon_budget_g":1e-300}"#,
            "objective.carbon_budget_g",
            "is 1e-300; it must be more than 0 grams of CO2 equivalent, 0.001 at the least",
        ),
        (
            r#"{"max_slowdown":0.5,"pausable":{"idle_power_w":1e308}}"#,
            "objective.pausable.idle_power_w",
            "is 1e308; it must be from 0 to 100000 watts",
        ),
    ];
    for (objective, field, detail) in objectives {
        let text = format!(r#"{{"name":"a","gpus":[0],"objective":{objective}}}"#);
        assert_refused(register, &[(&text, 422, Some(field), detail)]);
    }
    let null = r#"{"name":"a","gpus":[0],"priority":null,"tags":null,"batch_size":null}"#;
    assert_eq!(register(null), register(r#"{"name":"a","gpus":[0]}"#), "null is read like an absent field");
    let problem = register("{\"name\": \"a\",\n \"gpus\": {}}").expect_err("an object");
    assert_eq!(problem.line, Some(2));
}
