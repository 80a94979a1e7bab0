//! Recurring jobs that are damaged, imported from elsewhere, or interrupted.

use rusqlite::Connection;
use serde_json::json;

use crate::recurring::{report, spec, start};

#[tokio::test]
async fn a_generator_that_cannot_be_one_is_refused_and_holds_nobody_up_where_it_is_stored() {
    let state = tempfile::tempdir().expect("a directory");
    let daemon = start(state.path()).await;
    let base = "/v1/recurring/a";
    daemon.put(base, &spec()).await.expect(201);
    // Zeus draws once its explorations are through.
    for number in 1..=6 {
        let trial = daemon.post(&format!("{base}/trials"), &json!({})).await.expect(201);
        let batch_size = trial["batch_size"].as_u64().expect("a batch size");
        let last = report(number, batch_size, 10);
        daemon.post(&format!("{base}/trials/{number}/progress"), &last).await.expect(200);
    }
    assert_eq!(daemon.get(base).await.expect(200)["stage"], "exploiting");
    let mut document = daemon.get(&format!("{base}/export")).await.expect(200);
    document["generator"] = json!({"state": "0", "increment": "0", "half": null});
    let refused = daemon.post("/v1/recurring/b/import", &document).await.problem(422);
    assert_eq!(refused["field"], "generator.increment", "{refused}");
    assert!(refused["detail"].as_str().expect("text").contains("odd"), "{refused}");
    daemon.get("/v1/recurring/b").await.problem(404);

    daemon.kill();
    let db = Connection::open(state.path().join("wattune.db")).expect("the books");
    let generator = document["generator"].to_string();
    assert_eq!(db.execute("UPDATE recurring_jobs SET generator = ?1", [generator]).expect("written"), 1);
    drop(db);
    let daemon = start(state.path()).await;
    assert_eq!(daemon.get(base).await.expect(200)["stage"], "exploiting");
    daemon.post(&format!("{base}/trials"), &json!({})).await.expect(201);
    assert_eq!(daemon.delete(base).await.expect(200)["trials"], 7);
    daemon.get(base).await.problem(404);
}
