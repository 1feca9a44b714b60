use super::*;
use crate::file::memory_file;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Memory with a mark.
pub(super) struct Buf {
    memory: Box<[u8]>,
    mark: Option<Arc<u32>>,
}

impl Buf {
    pub fn zeroed(len: usize) -> Buf {
        Buf { memory: vec![0; len].into_boxed_slice(), mark: None }
    }
}

impl Parts for Vec<Vec<u8>> {
    fn each_part<'a>(&'a self, add: impl FnMut(&'a [u8])) {
        self.iter().map(Vec::as_slice).for_each(add);
    }
}

pub(super) struct Plain;

// SAFETY: the box keeps its memory where it is, and the mark goes with it.
unsafe impl Loans for Plain {
    type Buf = Buf;
    type Message = Vec<Vec<u8>>;
    type Answer = Vec<Vec<u8>>;

    fn bytes(buf: &Buf) -> &[u8] {
        &buf.memory
    }

    fn bytes_mut(buf: &mut Buf) -> &mut [u8] {
        &mut buf.memory
    }

    fn capacity(buf: &Buf) -> usize {
        buf.memory.len()
    }

    fn mark(buf: &mut Buf) -> &mut Option<Arc<u32>> {
        &mut buf.mark
    }
}

fn arrivals(driver: &mut Driver<Plain>, count: usize) -> Vec<Arrival<Plain>> {
    let mut out = Vec::new();
    while out.len() < count {
        driver.wait(Some(Duration::from_secs(10)), &mut out).unwrap();
    }
    out
}

#[test]
fn what_a_connection_lends_comes_back() {
    for backend in [Backend::Auto, Backend::Threads] {
        let (mut driver, _) = Driver::<Plain>::new(backend, &Waker::new().unwrap()).unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        for (key, stream) in [(7, &here), (3, &there)] {
            stream.set_nonblocking(!driver.has_ring()).unwrap();
            driver.watch(stream.as_raw_fd(), key, false).unwrap();
        }
        let message = vec![b"some ".to_vec(), Vec::new(), b"words".to_vec()];
        let at = message[2].as_ptr();
        driver.receive(3, there.as_raw_fd(), vec![0; 64].into_boxed_slice());
        driver.send(7, here.as_raw_fd(), message);
        let (mut sent, mut received) = (None, None);
        for arrival in arrivals(&mut driver, 2) {
            match arrival {
                Arrival::Sent(7, 10, message) => sent = Some(message[2].as_ptr()),
                Arrival::Received(3, 10, input) => received = Some(input[..10].to_vec()),
                _ => panic!("neither of the two"),
            }
        }
        assert_eq!(sent, Some(at), "the same memory");
        assert_eq!(received.unwrap(), b"some words");
    }
}

#[test]
fn a_buffer_of_a_write_can_be_looked_at_and_one_of_a_read_cannot() {
    let (mut driver, notice) = Driver::<Plain>::new(Backend::Auto, &Waker::new().unwrap()).unwrap();
    let Some(ring) = driver.ring() else { return eprintln!("skipped: {notice:?}") };
    let file = memory_file(8192).unwrap();
    let mut written = Buf::zeroed(4096);
    written.memory.fill(5);
    ring.write(0, file.as_raw_fd(), 4096, (written, 0));
    ring.read(1, file.as_raw_fd(), 0, (Buf::zeroed(4096), 0));
    assert_eq!(ring.written(0).map(|buf| buf.memory[0]), Some(5));
    assert!(ring.written(1).is_none() && ring.written(2).is_none());
    for arrival in arrivals(&mut driver, 2) {
        let Arrival::Io(slot, 4096, Some(buf)) = arrival else { panic!("both are whole") };
        assert_eq!(buf.memory[0], if slot == 0 { 5 } else { 0 });
    }
    assert!(driver.ring().unwrap().written(0).is_none(), "it is not lent any more");
    let mut found = [0; 1];
    file.read_exact_at(&mut found, 4096).unwrap();
    assert_eq!(found, [5]);
}

#[test]
fn a_thread_that_rests_waits_for_its_io() {
    let (mut driver, notice) = Driver::<Plain>::new(Backend::Auto, &Waker::new().unwrap()).unwrap();
    let Some(ring) = driver.ring() else { return eprintln!("skipped: {notice:?}") };
    let (here, mut there) = UnixStream::pair().unwrap();
    ring.read(0, here.as_raw_fd(), 0, (Buf::zeroed(4096), 0));
    let file = memory_file(4096).unwrap();
    ring.flush(1, file.as_raw_fd());
    let begin = Instant::now();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        there.write_all(&[1; 4096]).unwrap();
    });
    driver.rest().unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(200), "{:?}", begin.elapsed());
    ends.join().unwrap();
    driver.rest().unwrap();
}

#[test]
#[should_panic(expected = "one receive at a time")]
fn memory_is_not_lent_twice() {
    let (mut driver, _) = Driver::<Plain>::new(Backend::Auto, &Waker::new().unwrap()).unwrap();
    let (here, _there) = UnixStream::pair().unwrap();
    driver.watch(here.as_raw_fd(), 0, false).unwrap();
    for _ in 0..2 {
        driver.receive(0, here.as_raw_fd(), vec![0; 64].into_boxed_slice());
    }
}
