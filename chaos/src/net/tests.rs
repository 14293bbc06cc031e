//! The proxy, with sockets of this process at both ends.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const A: Host = Host::Replica(0);
const B: Host = Host::Replica(1);

/// Everybody who connects is A.
struct Always;

impl Who for Always {
    fn at(&self, _: SocketAddr, _: SocketAddr) -> futures::future::BoxFuture<'_, Option<Host>> {
        Box::pin(std::future::ready(Some(A)))
    }
}

struct World {
    net: Arc<Net>,
    server: TcpListener,
    at: SocketAddr,
}

async fn world() -> World {
    let net = Arc::new(Net::new(Box::new(Always)));
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    drop(clock::spawn(net.clone().serve(listener, B, server.local_addr().unwrap())));
    World { net, server, at }
}

impl World {
    async fn connect(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.at).await.unwrap();
        (client, self.server.accept().await.unwrap().0)
    }
}

async fn next(stream: &mut TcpStream) -> Option<u8> {
    let mut byte = [0];
    let read = clock::within(Duration::from_secs(20), stream.read_exact(&mut byte)).await;
    read.expect("nothing came").ok().map(|_| byte[0])
}

/// Nothing can be read, for a while.
async fn silent(stream: &mut TcpStream) {
    let mut byte = [0];
    let read = clock::within(Duration::from_millis(60), stream.read(&mut byte)).await;
    assert!(read.is_none(), "{read:?}");
}

fn cut(pair: Pair) -> BTreeMap<Pair, Rule> {
    [(pair, Rule::CUT)].into()
}

#[tokio::test]
async fn bytes_pass_both_ways_and_the_end_too() {
    let world = world().await;
    let (mut client, mut server) = world.connect().await;
    client.write_all(b"a").await.unwrap();
    server.write_all(b"b").await.unwrap();
    assert_eq!((next(&mut server).await, next(&mut client).await), (Some(b'a'), Some(b'b')));
    drop(client);
    assert_eq!(next(&mut server).await, None);
}

#[tokio::test]
async fn a_cut_one_way_holds_what_goes_that_way_until_it_is_mended() {
    let world = world().await;
    let (mut client, mut server) = world.connect().await;
    let token = world.net.begin(cut((A, B)));
    client.write_all(b"a").await.unwrap();
    server.write_all(b"b").await.unwrap();
    assert_eq!(next(&mut client).await, Some(b'b'));
    silent(&mut server).await;
    world.net.end(&token);
    assert_eq!(next(&mut server).await, Some(b'a'));
}

#[tokio::test]
async fn nobody_connects_across_a_cut() {
    let world = world().await;
    let token = world.net.begin(cut((B, A)));
    let mut client = TcpStream::connect(world.at).await.unwrap();
    client.write_all(b"a").await.unwrap();
    let waiting = clock::within(Duration::from_millis(60), world.server.accept()).await;
    assert!(waiting.is_none());
    world.net.end(&token);
    let (mut server, _) = world.server.accept().await.unwrap();
    assert_eq!(next(&mut server).await, Some(b'a'));
}

#[tokio::test]
async fn what_is_delayed_comes_late_and_in_order() {
    let world = world().await;
    let (mut client, mut server) = world.connect().await;
    let rule = Rule { delay: 80_000, jitter: 40_000, cut: false };
    let token = world.net.begin([((A, B), rule)].into());
    let clock = clock::Clock::start();
    for byte in 0..20 {
        client.write_all(&[byte]).await.unwrap();
    }
    for byte in 0..20 {
        assert_eq!(next(&mut server).await, Some(byte));
    }
    assert!(clock.millis() >= 80, "{}", clock.millis());
    world.net.end(&token);
}

#[tokio::test]
async fn a_reset_ends_both_sides() {
    let world = world().await;
    let (mut client, mut server) = world.connect().await;
    client.write_all(b"a").await.unwrap();
    assert_eq!(next(&mut server).await, Some(b'a'));
    assert_eq!(world.net.reset(|pair| pair == (B, A)), 0);
    assert_eq!(world.net.reset(|pair| pair == (A, B)), 1);
    assert_eq!((next(&mut client).await, next(&mut server).await), (None, None));
}

#[tokio::test]
async fn a_younger_connection_overtakes_an_older_one() {
    let world = world().await;
    let (mut old, mut at_old) = world.connect().await;
    old.write_all(b"0").await.unwrap();
    assert_eq!(next(&mut at_old).await, Some(b'0'));
    let held = world.net.hold(|pair| pair == (A, B));
    assert_eq!(held.count(), 1);
    old.write_all(b"1").await.unwrap();
    silent(&mut at_old).await;
    held.cut_off();
    assert_eq!(next(&mut old).await, None);
    let (mut young, mut at_young) = world.connect().await;
    young.write_all(b"2").await.unwrap();
    assert_eq!(next(&mut at_young).await, Some(b'2'));
    silent(&mut at_old).await;
    held.release();
    assert_eq!((next(&mut at_old).await, next(&mut at_old).await), (Some(b'1'), None));
}
