//! A client of NBD, as small as a test needs: one request at a time, simple replies.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const OPTION_GO: u32 = 7;

/// A connection to one export.
pub struct Nbd {
    stream: UnixStream,
    /// Size in bytes, as the server tells.
    pub bytes: u64,
}

impl Nbd {
    /// Connects to the export `name`. `None` if the server does not have it.
    pub fn connect(socket: &Path, name: &str) -> Option<Nbd> {
        let mut stream = UnixStream::connect(socket).expect("connect to the NBD socket");
        let hello: [u8; 18] = take(&mut stream);
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        let mut message = 3_u32.to_be_bytes().to_vec();
        message.extend(OPTION_MAGIC.to_be_bytes());
        message.extend(OPTION_GO.to_be_bytes());
        message.extend((name.len() as u32 + 6).to_be_bytes());
        message.extend((name.len() as u32).to_be_bytes());
        message.extend(name.as_bytes());
        message.extend(0_u16.to_be_bytes());
        stream.write_all(&message).unwrap();
        let mut bytes = 0;
        loop {
            let head: [u8; 20] = take(&mut stream);
            assert_eq!(head[..8], REPLY_MAGIC.to_be_bytes());
            let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
            let mut data = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
            stream.read_exact(&mut data).unwrap();
            match kind {
                1 => return Some(Nbd { stream, bytes }),
                3 if data[..2] == [0, 0] => {
                    bytes = u64::from_be_bytes(data[2..10].try_into().unwrap());
                }
                3 => {}
                _ => return None,
            }
        }
    }

    fn request(&mut self, kind: u16, offset: u64, len: u32, data: &[u8]) -> Result<(), u32> {
        let mut message = 0x2560_9513_u32.to_be_bytes().to_vec();
        message.extend(0_u16.to_be_bytes());
        message.extend(kind.to_be_bytes());
        message.extend(7_u64.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend(len.to_be_bytes());
        message.extend(data);
        self.stream.write_all(&message).map_err(|_| u32::MAX)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).map_err(|_| u32::MAX)?;
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => Ok(()),
            error => Err(error),
        }
    }

    /// Reads `len` bytes.
    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.request(0, offset, len, &[])?;
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data).map_err(|_| u32::MAX)?;
        Ok(data)
    }

    /// Writes `data`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.request(1, offset, data.len() as u32, data)
    }

    /// Makes durable what was written.
    pub fn flush(&mut self) -> Result<(), u32> {
        self.request(3, 0, 0, &[])
    }

    /// Reads everything.
    pub fn read_all(&mut self) -> Vec<u8> {
        const CHUNK: u64 = 1 << 20;
        let mut all = Vec::new();
        while (all.len() as u64) < self.bytes {
            let at = all.len() as u64;
            let len = CHUNK.min(self.bytes - at) as u32;
            all.extend(self.read(at, len).expect("read"));
        }
        all
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        let mut message = 0x2560_9513_u32.to_be_bytes().to_vec();
        message.extend(0_u16.to_be_bytes());
        message.extend(2_u16.to_be_bytes());
        message.extend([0; 20]);
        let _ = self.stream.write_all(&message);
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).expect("the server's greeting");
    bytes
}
