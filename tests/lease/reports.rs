//! What leases report as `tracing` events.

use crate::warnings::Warnings;
use crate::{Fixture, Mood};

#[test]
fn an_outage_is_reported_once_a_round_and_not_for_each_lease() {
    let (fixture, warnings) = (Fixture::new(), Warnings::default());
    let _leases: Vec<_> = (0..12).map(|key| fixture.leases.hold(key).unwrap()).collect();
    tracing::subscriber::with_default(warnings.listener(), || {
        fixture.set(Mood::Fails);
        fixture.pass(12);
        fixture.set(Mood::Renews);
        fixture.pass(20);
    });
    assert_eq!(warnings.take(), [[12]]);
    assert_eq!(fixture.take_lost(), []);
}
