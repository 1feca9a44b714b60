# setup.sh BIN DIR: a pool of 512 MiB, write-back, on files; volumes `data` (1 GiB) and `other` (1 GiB)
b=$1; d=$2; mkdir -p $d; truncate -s 1G $d/o1; truncate -s 1G $d/o2; truncate -s 512M $d/c1
for o in o1 o2; do dd if=/dev/urandom of=$d/$o bs=1M count=1024 conv=notrunc status=none; done
nice -n ${NICE:-0} $b/forebayd --state-dir $d/st --private >$d/log 2>&1 & echo $! >$d/pid
for i in $(seq 100); do [ -S $d/st/control.sock ] && break; sleep .1; done
$b/forebay --socket $d/st/control.sock cache $d/o1 --with $d/c1 --mode writeback --name data --export nbd -y >/dev/null
$b/forebay --socket $d/st/control.sock cache $d/o2 --with $d/c1 --mode writeback --name other --export nbd -y >/dev/null
$b/forebay --socket $d/st/control.sock status
