//! A node: its builder, and its calls.

use crate::entry::Error;
use crate::node::Options;
use crate::store::Store;
use std::future::Future;
use std::marker::PhantomData;

/// Opens a store when a node starts.
pub trait OpenStore: Send {
    /// The store.
    type Store: Store;

    /// Connects, and makes the tables if they are missing.
    fn open(self) -> impl Future<Output = Result<Self::Store, Error>> + Send;
}

impl<S: Store> OpenStore for S {
    type Store = S;

    async fn open(self) -> Result<S, Error> {
        Ok(self)
    }
}

/// Sets up a node: [`Durable`] makes a builder for each kind of store.
#[derive(Debug)]
pub struct DurableBuilder<O> {
    pub(crate) store: O,
    pub(crate) options: Options,
}

impl<O: OpenStore> DurableBuilder<O> {
    pub(crate) fn new(store: O) -> Self {
        DurableBuilder {
            store,
            options: Options::default(),
        }
    }
}

/// A node's durable timers, in one namespace of a store: see the [crate's page](crate).
#[derive(Debug)]
pub struct Durable<S: Store> {
    store: PhantomData<S>,
}
