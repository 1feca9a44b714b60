use super::wire::*;
use zerocopy::IntoBytes;

const WISHES: Wishes = Wishes { write_bytes_max: 1 << 20, background_max: 128, io_uring: false };

fn request(opcode: u32, unique: u64, args: &[u8]) -> Vec<u8> {
    let mut bytes = [(IN_HEADER_BYTES + args.len()) as u32, opcode].map(u32::to_ne_bytes).concat();
    bytes.extend(unique.to_ne_bytes());
    bytes.extend([0; 24]);
    bytes.extend(args);
    bytes
}

/// An INIT request as kernels since 5.17 send it.
fn init(major: u32, minor: u32, flags: u64) -> Vec<u8> {
    let words = [major, minor, 128 << 10, flags as u32, (flags >> 32) as u32];
    let mut args = words.map(u32::to_ne_bytes).concat();
    args.resize(64, 0);
    request(opcode::INIT, 1, &args)
}

#[test]
fn kernel_and_forebay_agree_on_what_both_can_do() {
    let all = !0;
    let (unique, reply, agreed) = negotiate(&init(7, 45, all), &WISHES).unwrap();
    assert_eq!((unique, agreed.bytes_max), (1, 1 << 20));
    assert_eq!(agreed.flags & flag::OVER_IO_URING, 0, "only when wished");
    assert_ne!(agreed.flags & flag::HAS_RESEND, 0);
    let bytes = reply.as_bytes();
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (7, 1 << 20));
    assert_eq!(u16::from_ne_bytes([bytes[28], bytes[29]]), 256, "pages of the largest request");
    assert_eq!(u64::from(word(12)) | u64::from(word(32)) << 32, agreed.flags);
    let wishes = Wishes { io_uring: true, ..WISHES };
    let (_, _, agreed) = negotiate(&init(7, 45, all), &wishes).unwrap();
    assert_ne!(agreed.flags & flag::OVER_IO_URING, 0);
    // A kernel of before: no long flags and no long requests.
    let old = request(opcode::INIT, 1, &[7, 23, 0, 1].map(u32::to_ne_bytes).concat());
    let (_, _, agreed) = negotiate(&old, &WISHES).unwrap();
    assert_eq!((agreed.flags, agreed.bytes_max), (flag::ASYNC_READ, 128 << 10));
}

#[test]
fn a_kernel_that_cannot_be_agreed_with_is_told_from_one_that_says_something_else() {
    let refused = |bytes: &[u8]| negotiate(bytes, &WISHES).unwrap_err();
    assert_eq!(refused(&init(7, 22, 0)), NoAgreement::Version(7, 22));
    assert_eq!(refused(&init(8, 0, 0)), NoAgreement::Version(8, 0));
    assert_eq!(refused(&request(opcode::GETATTR, 1, &[0; 16])), NoAgreement::NotInit);
    assert_eq!(refused(&[]), NoAgreement::NotInit);
    assert_eq!(refused(&request(opcode::INIT, 1, &[])), NoAgreement::Version(0, 0));
}

#[test]
fn a_request_that_is_cut_short_anywhere_is_a_fault_and_never_a_panic() {
    for number in 0..64 {
        let whole = request(number, 9, &[0xff; 88]);
        for len in 0..whole.len() {
            let fault = parse(&whole[..len], len).unwrap_err();
            let expected = if len < IN_HEADER_BYTES { Fault::NoHeader } else { Fault::Broken(9) };
            assert_eq!(fault, expected, "request {number}, {len} bytes");
            // The header admits how short it is: then the arguments must be found missing.
            let mut honest = whole[..len].to_vec();
            if len >= IN_HEADER_BYTES {
                honest[..4].copy_from_slice(&(len as u32).to_ne_bytes());
                let _ = parse(&honest, len);
            }
        }
    }
}

#[test]
fn a_write_says_as_many_bytes_as_follow_and_whether_it_must_be_durable() {
    let mut args = [5, 4096].map(u64::to_ne_bytes).concat();
    args.extend([512_u32, 0].map(u32::to_ne_bytes).concat());
    args.extend(0_u64.to_ne_bytes());
    args.extend([libc::O_RDWR as u32 | libc::O_DSYNC as u32, 0].map(u32::to_ne_bytes).concat());
    args.resize(40 + 512, 7);
    let bytes = request(opcode::WRITE, 3, &args);
    let call = Call::Write { offset: 4096, len: 512, sync: true };
    assert_eq!(parse(&bytes, bytes.len()), Ok((3, call)));
    let short = request(opcode::WRITE, 3, &args[..40 + 511]);
    assert_eq!(parse(&short, short.len()), Err(Fault::Broken(3)));
    // The name of a request that is sent again keeps its mark, for the answer.
    let again = request(opcode::FSYNC, 3 | UNIQUE_RESEND, &[0; 16]);
    assert_eq!(parse(&again, again.len()), Ok((3 | UNIQUE_RESEND, Call::Fsync)));
}

#[test]
fn an_error_has_no_body() {
    let header = out_header(7, libc::EIO, 4096);
    assert_eq!(header, OutHeader { len: 16, error: -libc::EIO, unique: 7 });
    assert_eq!(out_header(7, 0, 4096).len, 4112);
}
