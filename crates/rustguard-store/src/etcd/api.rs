//! The part of etcd's interface (version 3, gRPC) that a log needs: etcd's `rpc.proto`, written down as Rust.
//!
//! The crate `etcd-client` has the whole interface, and generates it while it is built. That takes `protoc` and the
//! files of protobuf on each machine that builds RustGuard, also where nobody uses etcd.

use prost::{Message, Oneof};
use std::time::Duration;
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use tonic_prost::ProstCodec;
use zeroize::Zeroizing;

/// The longest answer: a page of entries, or of parts of a snapshot.
const MAX_ANSWER: usize = 80 << 20;
const CONNECT: Duration = Duration::from_millis(1_500);
/// A connection that does not answer is given up after twice this time.
const KEEPALIVE: Duration = Duration::from_secs(2);

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
}

/// `end` is the key after the last one; without it, `key` is the only one. Keys come in their order.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Found {
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteRange {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    end: Vec<u8>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Operation {
    #[prost(message, tag = "1")]
    Range(Range),
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRange),
}

/// An operation of a transaction.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Op {
    #[prost(oneof = "Operation", tags = "1, 2, 3")]
    operation: Option<Operation>,
}

impl Op {
    pub(super) fn get(range: Range) -> Self {
        Self { operation: Some(Operation::Range(range)) }
    }

    pub(super) fn put(key: Vec<u8>, value: impl Into<Vec<u8>>) -> Self {
        Self { operation: Some(Operation::Put(Put { key, value: value.into() })) }
    }

    /// Deletes the keys from `key` on, without `end`.
    pub(super) fn delete(key: Vec<u8>, end: Vec<u8>) -> Self {
        Self { operation: Some(Operation::DeleteRange(DeleteRange { key, end })) }
    }
}

#[derive(Clone, PartialEq, Oneof)]
enum Target {
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
}

/// A condition of a transaction: that something is equal (`result` 0).
#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    /// Which field is compared: 2 is the revision of the last change, 3 the value.
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "Target", tags = "6, 7")]
    expected: Option<Target>,
}

impl Compare {
    /// The key was last changed by this revision of etcd; 0: it does not exist.
    pub(super) fn changed_by(key: Vec<u8>, revision: i64) -> Self {
        Self { target: 2, key, expected: Some(Target::ModRevision(revision)) }
    }

    pub(super) fn value(key: Vec<u8>, value: impl Into<Vec<u8>>) -> Self {
        Self { target: 3, key, expected: Some(Target::Value(value.into())) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Txn {
    #[prost(message, repeated, tag = "1")]
    pub(super) when: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) then: Vec<Op>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Answer {
    #[prost(message, tag = "1")]
    Range(Found),
    #[prost(message, tag = "2")]
    Put(Empty),
    #[prost(message, tag = "3")]
    DeleteRange(Empty),
}

#[derive(Clone, PartialEq, Message)]
struct Empty {}

#[derive(Clone, PartialEq, Message)]
struct OpAnswer {
    #[prost(oneof = "Answer", tags = "1, 2, 3")]
    answer: Option<Answer>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Done {
    /// Whether the conditions held.
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    answers: Vec<OpAnswer>,
}

impl Done {
    /// The keys that the operations found, one list for each [`Op::get`].
    pub(super) fn found(self) -> impl Iterator<Item = Vec<KeyValue>> {
        self.answers.into_iter().filter_map(|answer| match answer.answer {
            Some(Answer::Range(found)) => Some(found.kvs),
            _ => None,
        })
    }
}

#[derive(Clone, PartialEq, Message)]
struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreate>,
}

/// A message of a watch. Only its arrival matters.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Watched {
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Authenticate {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    password: String,
}

#[derive(Clone, PartialEq, Message)]
struct Token {
    #[prost(string, tag = "2")]
    token: String,
}

/// The configuration that clients of all hosts share.
pub(super) struct Access {
    pub(super) tls: Option<ClientTlsConfig>,
    /// A user and the password.
    pub(super) user: Option<(String, Zeroizing<String>)>,
}

impl Access {
    /// Certificates of authorities, without which those of the system count, and the client's certificate with its key,
    /// as PEM.
    pub(super) fn tls(authorities: Option<&[u8]>, identity: Option<(&[u8], &[u8])>) -> ClientTlsConfig {
        let tls = match authorities {
            Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        match identity {
            Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, key)),
            None => tls,
        }
    }
}

/// A client of one member.
#[derive(Clone)]
pub(super) struct Client {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

impl Client {
    /// The client of the member at this URL. With a user, it logs in; without one, it connects when it is needed.
    pub(super) async fn connect(url: String, access: &Access) -> Result<Self, Status> {
        let unusable = |error: tonic::transport::Error| Status::from_error(Box::new(error));
        let mut endpoint = Endpoint::from_shared(url)
            .map_err(unusable)?
            .connect_timeout(CONNECT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        if let Some(tls) = &access.tls {
            endpoint = endpoint.tls_config(tls.clone()).map_err(unusable)?;
        }
        let mut client = Self { channel: endpoint.connect_lazy(), token: None };
        if let Some((name, password)) = &access.user {
            let login = Authenticate { name: name.clone(), password: password.as_str().to_owned() };
            let Token { token } = client.unary("/etcdserverpb.Auth/Authenticate", login).await?;
            let token = token.parse().map_err(|_| Status::new(Code::Internal, "etcd gave no usable token"))?;
            client.token = Some(token);
        }
        Ok(client)
    }

    pub(super) async fn range(self, range: Range) -> Result<Vec<KeyValue>, Status> {
        let Found { kvs } = self.unary("/etcdserverpb.KV/Range", range).await?;
        Ok(kvs)
    }

    pub(super) async fn put(self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Status> {
        let Empty {} = self.unary("/etcdserverpb.KV/Put", Put { key, value }).await?;
        Ok(())
    }

    pub(super) async fn txn(self, txn: Txn) -> Result<Done, Status> {
        self.unary("/etcdserverpb.KV/Txn", txn).await
    }

    /// Watches a key. The first message says that the watch has begun.
    pub(super) async fn watch(&self, key: Vec<u8>) -> Result<Streaming<Watched>, Status> {
        let mut grpc = self.ready().await?;
        let request = WatchRequest { create: Some(WatchCreate { key }) };
        // A stream that ends would end the watch.
        let requests = futures_util::stream::StreamExt::chain(
            futures_util::stream::iter([request]),
            futures_util::stream::pending(),
        );
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let answer = grpc.streaming(self.with_token(requests), path, ProstCodec::default()).await?;
        Ok(answer.into_inner())
    }

    async fn unary<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Status>
    where
        Q: Message + Default + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static(path);
        let answer = grpc.unary(self.with_token(message), path, ProstCodec::<Q, A>::default()).await?;
        Ok(answer.into_inner())
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER);
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(grpc)
    }

    fn with_token<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        // A member that has lost the others says so, in place of waiting for them.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        request
    }
}
