//! The example of a store of one's own does what its documentation says.

#[path = "../examples/redb.rs"]
mod redb_log;

#[tokio::test]
async fn the_log_in_redb_conforms() {
    let folder = tempfile::tempdir().unwrap();
    redb_log::check(&folder.path().join("log")).await.unwrap();
}
