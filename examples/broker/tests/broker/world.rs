//! A broker whose time stands still until a test moves it, and what clients ask of it.

use bytes::{Bytes, BytesMut};
use clap::Parser;
pub(crate) use kafka_protocol::messages::{
    fetch_request::*, join_group_request::*, metadata_request::*, offset_commit_request::*,
    offset_fetch_request::*, produce_request::*, sync_group_request::*, *,
};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records::{
    Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tickwheel::{ManualClock, Timer};
use tickwheel_broker::{Broker, Options, Request};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const NS: Duration = Duration::from_nanos(1);
/// How late the follower is.
pub(crate) const LAG: Duration = Duration::from_millis(5);

pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) timer: Timer,
    pub(crate) broker: Arc<Broker>,
}

pub(crate) fn options() -> Options {
    Options::parse_from(["broker", "--listen=127.0.0.1:0", "--partitions=2"])
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = ManualClock::new();
        let timer = Timer::builder()
            .clock(clock.clone())
            .build()
            .expect("a timer");
        let options = options();
        let broker = Broker::new(&options, options.listen, &timer);
        World {
            clock,
            timer,
            broker,
        }
    }

    /// Lets time pass.
    pub(crate) fn advance(&self, delay: Duration) {
        self.clock.advance(delay);
        self.timer.advance_clock(Duration::ZERO);
    }

    /// Asks for something; it waits from now on, unless it is answered at once.
    pub(crate) fn ask(&self, version: i16, body: impl Into<RequestKind>) -> Asked {
        let broker = Arc::clone(&self.broker);
        let request = Request {
            version,
            correlation_id: 0,
            body: body.into(),
        };
        let mut asked = Asked(Box::pin(async move { broker.answer(request).await }), None);
        asked.is_answered();
        asked
    }

    pub(crate) fn create(&self, topic: &str) -> MetadataResponse {
        answered!(Metadata, self.ask(7, metadata(topic)).answer())
    }

    /// Fetches partition 0 from an offset on.
    pub(crate) fn fetch(&self, topic: &str, offset: i64, min_bytes: i32) -> Asked {
        self.ask(11, fetch(topic, offset, min_bytes))
    }

    /// Appends to partition 0. Returns the error's code and the offset, now or later.
    pub(crate) fn produce(&self, topic: &str, acks: i16, records: Bytes) -> Asked {
        self.ask(8, produce(topic, acks, records))
    }

    /// Appends, and lets the follower have it.
    pub(crate) fn append(&self, topic: &str, records: Bytes) -> (i16, i64) {
        let result = self.produce(topic, 1, records).produced();
        self.advance(LAG);
        result
    }
}

/// A request, and its answer when there is one.
pub(crate) struct Asked(
    Pin<Box<dyn Future<Output = Option<ResponseKind>>>>,
    Option<Option<ResponseKind>>,
);

impl Asked {
    pub(crate) fn is_answered(&mut self) -> bool {
        if self.1.is_none() {
            if let Poll::Ready(answer) = self
                .0
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
            {
                self.1 = Some(answer);
            }
        }
        self.1.is_some()
    }

    pub(crate) fn answer(mut self) -> ResponseKind {
        assert!(self.is_answered(), "it waits");
        self.1.flatten().expect("an answer")
    }

    /// Returns whether it is done without an answer.
    pub(crate) fn wants_none(&self) -> bool {
        matches!(self.1, Some(None))
    }

    /// Returns the error's code and the offset.
    pub(crate) fn produced(self) -> (i16, i64) {
        let response = answered!(Produce, self.answer());
        let answer = &response.responses[0].partition_responses[0];
        (answer.error_code, answer.base_offset)
    }

    /// Returns the error's code and how many bytes there are.
    pub(crate) fn fetched(self) -> (i16, usize) {
        let response = answered!(Fetch, self.answer());
        let answer = &response.responses[0].partitions[0];
        (
            answer.error_code,
            answer.records.as_ref().map_or(0, Bytes::len),
        )
    }
}

/// Unpacks an answer of a kind.
macro_rules! answered {
    ($kind:ident, $answer:expr) => {
        match $answer {
            kafka_protocol::messages::ResponseKind::$kind(body) => body,
            other => panic!("{other:?}"),
        }
    };
}
pub(crate) use answered;

/// Makes a part of a request, with some of its fields set.
macro_rules! with {
    ($part:path { $($field:ident: $value:expr),* $(,)? }) => {{
        let mut part = <$part>::default();
        $(part.$field = $value;)*
        part
    }};
}
pub(crate) use with;

pub(crate) fn metadata(topic: &str) -> MetadataRequest {
    let topic = with!(MetadataRequestTopic {
        name: Some(name(topic))
    });
    with!(MetadataRequest {
        topics: Some(vec![topic])
    })
}

pub(crate) fn fetch(topic: &str, fetch_offset: i64, min_bytes: i32) -> FetchRequest {
    let max_bytes = i32::MAX;
    let partition = with!(FetchPartition {
        fetch_offset: fetch_offset,
        partition_max_bytes: max_bytes
    });
    let topics = vec![with!(FetchTopic {
        topic: name(topic),
        partitions: vec![partition]
    })];
    let request = with!(FetchRequest {
        max_wait_ms: 500,
        max_bytes: max_bytes,
        topics: topics
    });
    request.with_min_bytes(min_bytes)
}

pub(crate) fn produce(topic: &str, acks: i16, records: Bytes) -> ProduceRequest {
    let partition_data = vec![with!(PartitionProduceData {
        records: Some(records)
    })];
    let topic = with!(TopicProduceData {
        name: name(topic),
        partition_data: partition_data
    });
    with!(ProduceRequest {
        acks: acks,
        timeout_ms: 1000,
        topic_data: vec![topic]
    })
}

/// A batch of one record, of no producer that would be known again.
pub(crate) fn batch(value: &[u8]) -> Bytes {
    sequenced(value, -1, -1, -1)
}

/// A batch of one record, as an idempotent producer numbers it.
pub(crate) fn sequenced(value: &[u8], id: i64, epoch: i16, sequence: i32) -> Bytes {
    let record = Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: id,
        producer_epoch: epoch,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence,
        timestamp: 1000,
        key: None,
        value: Some(Bytes::copy_from_slice(value)),
        headers: Default::default(),
    };
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    let mut bytes = BytesMut::new();
    RecordBatchEncoder::encode(&mut bytes, &[record], &options).expect("a batch");
    bytes.freeze()
}

pub(crate) fn name(topic: &str) -> TopicName {
    TopicName(text(topic))
}

pub(crate) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
