//! rskafka: speak-rskafka BROKER TOPIC. It has no groups and no transactions, and does not create
//! the topic: that was done before.

use chrono::DateTime;
use rskafka::client::ClientBuilder;
use rskafka::client::partition::{Compression, OffsetAt, UnknownTopicHandling};
use rskafka::record::Record;
use std::collections::BTreeMap;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [broker, topic] = &arguments[..] else { return Err("BROKER TOPIC".into()) };
    let client = ClientBuilder::new(vec![broker.clone()]).build().await?;
    let reader = client.partition_client(topic, 0, UnknownTopicHandling::Error).await?;
    // On a connection of its own, or the produce would wait behind the fetch.
    let other = ClientBuilder::new(vec![broker.clone()]).build().await?;
    let writer = other.partition_client(topic, 0, UnknownTopicHandling::Error).await?;
    let first = reader.get_offset(OffsetAt::Latest).await?;
    // It waits before there is anything, and the produce answers it.
    let fetch = reader.fetch_records(first, 1..1_000_000, 30_000);
    let produce = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let record = |number: i64| Record {
            key: None,
            value: Some(number.to_string().into_bytes()),
            headers: BTreeMap::new(),
            timestamp: DateTime::UNIX_EPOCH,
        };
        let records = (first..first + 1000).map(record).collect();
        writer.produce(records, Compression::NoCompression).await
    };
    let both = async { tokio::join!(fetch, produce) };
    let (fetched, produced) = tokio::time::timeout(Duration::from_secs(20), both).await?;
    assert_eq!(produced?.len(), 1000);
    let (records, _) = fetched?;
    assert_eq!(records.len(), 1000);
    for (number, record) in (first..).zip(records) {
        assert_eq!(record.offset, number);
        assert_eq!(record.record.value, Some(number.to_string().into_bytes()));
    }
    // Administration is refused at once.
    let create = client.controller_client()?;
    let create = create.create_topic("another", 1, 1, 1000);
    let refused = tokio::time::timeout(Duration::from_secs(20), create).await?;
    assert!(refused.is_err(), "it has created a topic");
    Ok(())
}
