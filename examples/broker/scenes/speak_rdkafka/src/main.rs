//! The `rdkafka` crate: produce, consume, park, join, acks, begin.

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use rdkafka::{ClientConfig, ClientContext, Message, Offset, TopicPartitionList};
use std::env;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

type Failure = Box<dyn std::error::Error>;

const LONG: Duration = Duration::from_secs(60);

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [verb, broker, topic, rest @ ..] = &arguments[..] else {
        return Err("VERB BROKER TOPIC ARGUMENTS".into());
    };
    let number = |place: usize| rest.get(place).ok_or("too few arguments");
    let client = Client { broker, topic };
    match verb.as_str() {
        "produce" => client.produce(number(0)?.parse()?, number(1)?.parse()?),
        "consume" => client.consume(number(0)?.parse()?, number(1)?.parse()?),
        "park" => client.park(number(0)?),
        "join" => client.join(number(0)?, number(1)?.parse()?),
        "acks" => client.acks(number(0)?),
        "begin" => client.begin(),
        other => Err(other.into()),
    }
}

/// Prints a line of JSON; the facts are JSON, too.
fn tell(event: &str, facts: &str) {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    println!(r#"{{"event": "{event}", "at": {at}{facts}}}"#);
}

struct Client<'a> {
    broker: &'a str,
    topic: &'a str,
}

impl Client<'_> {
    fn config(&self, settings: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.broker);
        for (name, value) in settings {
            config.set(*name, *value);
        }
        config
    }

    fn produce(&self, count: usize, partitions: usize) -> Result<(), Failure> {
        let settings = [("linger.ms", "20"), ("enable.idempotence", "true")];
        let producer: BaseProducer<Delivered> =
            self.config(&settings).create_with_context(Delivered::default())?;
        for number in 0..count {
            let value = number.to_string();
            let mut record = BaseRecord::<(), str>::to(self.topic)
                .payload(&value)
                .partition((number % partitions) as i32);
            while let Err((error, again)) = producer.send(record) {
                if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                    return Err(error.into());
                }
                producer.poll(Duration::from_millis(100));
                record = again;
            }
        }
        producer.flush(LONG)?;
        let codes = producer.context().codes.lock().map_err(|_| "it has panicked")?;
        let good = codes.iter().filter(|code| **code == 0).count();
        tell("produced", &format!(r#", "count": {good}"#));
        Ok(())
    }

    fn reader(&self, settings: &[(&str, &str)], parts: usize) -> Result<BaseConsumer, Failure> {
        let mut config = self.config(&[("group.id", "none")]);
        for (name, value) in settings {
            config.set(*name, *value);
        }
        let reader: BaseConsumer = config.create()?;
        let mut assigned = TopicPartitionList::new();
        for part in 0..parts {
            assigned.add_partition_offset(self.topic, part as i32, Offset::Beginning)?;
        }
        reader.assign(&assigned)?;
        Ok(reader)
    }

    fn consume(&self, count: usize, partitions: usize) -> Result<(), Failure> {
        let reader = self.reader(&[], partitions)?;
        let mut seen = vec![Vec::new(); partitions];
        for _ in 0..count {
            let message = reader.poll(LONG).ok_or("too few came")??;
            let text = std::str::from_utf8(message.payload().unwrap_or_default())?;
            seen[message.partition() as usize].push(text.parse::<usize>()?);
        }
        let in_order = |(part, numbers): (usize, &Vec<usize>)| {
            numbers.iter().copied().eq((part..count).step_by(partitions))
        };
        let in_order: Vec<bool> = seen.iter().enumerate().map(in_order).collect();
        let total: usize = seen.iter().map(Vec::len).sum();
        tell("consumed", &format!(r#", "seen": {in_order:?}, "count": {total}"#));
        Ok(())
    }

    /// Says when it gets the first message.
    fn park(&self, max_wait_ms: &str) -> Result<(), Failure> {
        let socket_timeout_ms = (max_wait_ms.parse::<u32>()? + 30_000).to_string();
        let settings =
            [("fetch.wait.max.ms", max_wait_ms), ("socket.timeout.ms", &*socket_timeout_ms)];
        let reader = self.reader(&settings, 1)?;
        tell("parked", "");
        reader.poll(LONG).ok_or("nothing came")??;
        tell("got", "");
        tell("done", "");
        Ok(())
    }

    /// Says what is assigned to it, each time; until it is killed.
    fn join(&self, group: &str, session_ms: u32) -> Result<(), Failure> {
        let (session, heartbeat) = (session_ms.to_string(), (session_ms / 6).to_string());
        let settings = [
            ("group.id", group),
            ("session.timeout.ms", &*session),
            ("heartbeat.interval.ms", &*heartbeat),
            ("auto.offset.reset", "earliest"),
        ];
        let reader: BaseConsumer<Assigned> =
            self.config(&settings).create_with_context(Assigned)?;
        reader.subscribe(&[self.topic])?;
        loop {
            reader.poll(Duration::from_secs(1)).transpose()?;
        }
    }

    /// Sends one message with acks=all. Says what became of it.
    fn acks(&self, timeout_ms: &str) -> Result<(), Failure> {
        let settings = [
            ("linger.ms", "0"),
            ("acks", "all"),
            ("request.timeout.ms", timeout_ms),
            ("retries", "0"),
        ];
        let producer: BaseProducer<Delivered> =
            self.config(&settings).create_with_context(Delivered::default())?;
        producer.client().fetch_metadata(Some(self.topic), LONG)?;
        let begun = Instant::now();
        let record = BaseRecord::<(), str>::to(self.topic).payload("acks").partition(0);
        producer.send(record).map_err(|(error, _)| error)?;
        producer.flush(LONG)?;
        let seconds = begun.elapsed().as_secs_f64();
        let codes = producer.context().codes.lock().map_err(|_| "it has panicked")?;
        let code = codes.first().ok_or("nothing was told")?;
        tell("answered", &format!(r#", "code": {code}, "seconds": {seconds}"#));
        Ok(())
    }

    /// Begins a transaction. Says what it is told, and when.
    fn begin(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        let producer: BaseProducer = self.config(&[("transactional.id", "transfer")]).create()?;
        let told = producer.init_transactions(LONG).err().map_or(String::new(), |e| e.to_string());
        let seconds = begun.elapsed().as_secs_f64();
        tell("refused", &format!(r#", "told": {told:?}, "seconds": {seconds}"#));
        Ok(())
    }
}

/// Keeps what became of each message: the code of its error, or 0.
#[derive(Default)]
struct Delivered {
    codes: Mutex<Vec<i32>>,
}

impl ClientContext for Delivered {}

impl ProducerContext for Delivered {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let code = match result {
            Ok(_) => 0,
            Err((KafkaError::MessageProduction(code), _)) => *code as i32,
            Err(_) => -1,
        };
        if let Ok(mut codes) = self.codes.lock() {
            codes.push(code);
        }
    }
}

struct Assigned;

impl ClientContext for Assigned {}

impl ConsumerContext for Assigned {
    fn post_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            tell("assigned", &format!(r#", "partitions": {}"#, list.count()));
        }
    }
}
