//! The socket of one guest's disk: one connection at a time, each on the server's thread.

use super::channel::Channel;
use super::device::Device;
use super::request::ID_BYTES;
use crate::frontend::VolumeBytes;
use crate::shard::ShardHandle;
use forebay_engine::VolumeId;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use vhost::vhost_user::{BackendReqHandler, Error};

/// How long the end of a socket waits for the requests that a guest still has under way.
const FAREWELL: Duration = Duration::from_secs(2);

/// The volume behind a socket.
#[derive(Clone)]
pub struct VhostVolume {
    /// Who serves it.
    pub shard: ShardHandle,
    /// Its number there.
    pub volume: VolumeId,
    /// Its size.
    pub bytes: VolumeBytes,
    /// What the guest sees as the disk's serial number; its first 20 bytes.
    pub name: String,
}

impl VhostVolume {
    pub(super) fn name_bytes(&self) -> [u8; ID_BYTES] {
        let mut bytes = [0; ID_BYTES];
        let name = self.name.as_bytes();
        let len = name.len().min(ID_BYTES);
        bytes[..len].copy_from_slice(&name[..len]);
        bytes
    }
}

#[derive(Default)]
struct State {
    stopping: bool,
    /// The connection being served, and its disk.
    client: Option<UnixStream>,
    device: Option<Arc<Mutex<Device>>>,
    /// It can be told of another size of the disk.
    listens: bool,
}

/// A vhost-user socket. It ends with this.
pub struct VhostServer {
    listener: Arc<UnixListener>,
    state: Arc<Mutex<State>>,
    /// It ends with the thread.
    ended: Mutex<Receiver<()>>,
}

impl VhostServer {
    /// Serves a volume on a listening socket.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(listener: UnixListener, volume: VhostVolume) -> io::Result<VhostServer> {
        let (listener, state) = (Arc::new(listener), Arc::new(Mutex::new(State::default())));
        let (own, told) = (Arc::clone(&listener), Arc::clone(&state));
        let name = format!("vhost-{}", volume.volume.0);
        let (ends, ended) = sync_channel(0);
        std::thread::Builder::new().name(name).spawn(move || {
            let _ends: SyncSender<()> = ends;
            accept_all(&own, &told, &volume);
        })?;
        Ok(VhostServer { listener, state, ended: Mutex::new(ended) })
    }

    /// Whether a guest is connected.
    pub fn is_connected(&self) -> bool {
        lock(&self.state).client.is_some()
    }

    /// Whether a guest is connected that cannot be told of another size of the disk.
    pub fn is_deaf(&self) -> bool {
        let state = lock(&self.state);
        state.client.is_some() && !state.listens
    }

    /// The volume has another size: tells the guest, if it can be told.
    pub fn announce(&self) {
        let device = lock(&self.state).device.clone();
        if let Some(device) = device {
            let listens = own(&device).tell();
            lock(&self.state).listens = listens;
        }
    }
}

impl Drop for VhostServer {
    /// Closes the socket and takes the queues back from the guest. Where their requests do not end,
    /// because an origin hangs, that goes on by itself.
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.stopping = true;
        if let Some(client) = &state.client {
            let _ = client.shutdown(Shutdown::Both);
        }
        drop(state);
        // Ends the accept under way.
        forebay_sys::socket::shutdown(self.listener.as_raw_fd());
        let ended = self.ended.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = ended.recv_timeout(FAREWELL);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn own(device: &Mutex<Device>) -> MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn accept_all(listener: &UnixListener, state: &Mutex<State>, volume: &VhostVolume) {
    loop {
        let accepted = listener.accept();
        let mut known = lock(state);
        if known.stopping {
            return;
        }
        let Ok((client, _)) = accepted else {
            drop(known);
            // No descriptors, or the client is gone already.
            std::thread::sleep(std::time::Duration::from_millis(100));
            continue;
        };
        known.client = client.try_clone().ok();
        drop(known);
        serve(client, state, volume);
        let mut known = lock(state);
        (known.client, known.device, known.listens) = (None, None, false);
    }
}

/// Speaks with one client until it goes, or breaks the protocol.
fn serve(client: UnixStream, state: &Mutex<State>, volume: &VhostVolume) {
    let device = Arc::new(Mutex::new(Device::new(volume.clone())));
    lock(state).device = Some(Arc::clone(&device));
    let mut handler = BackendReqHandler::from_stream(client, Arc::clone(&device));
    loop {
        if let Some(channel) = Channel::of_next(handler.as_raw_fd()) {
            own(&device).listens(channel);
        }
        match handler.handle_request() {
            Ok(()) | Err(Error::SocketRetry(_)) => {}
            // What it asked was refused, and it was told so.
            Err(Error::InvalidOperation(_) | Error::ReqHandlerError(_)) => {}
            Err(_) => break,
        }
        // After the answer: the other side listens to one thing at a time.
        let listens = own(&device).announce();
        lock(state).listens = listens;
    }
    let _ = own(&device).take_all_back();
}
