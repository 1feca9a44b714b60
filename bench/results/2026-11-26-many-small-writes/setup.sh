# setup.sh DIR [extra daemon args]
d=$1; shift; mkdir -p $d; truncate -s 1G $d/o1; truncate -s 256G $d/o2; truncate -s 1536M $d/c1
bin/forebayd --state-dir $d/st --private "$@" >$d/log 2>&1 & echo $! >$d/pid
for i in $(seq 60); do [ -S $d/st/control.sock ] && break; sleep .1; done
bin/forebay --socket $d/st/control.sock cache $d/o1 --with $d/c1 --mode writeback --name data --export nbd -y
bin/forebay --socket $d/st/control.sock cache $d/o2 --with $d/c1 --mode writeback --name atk --export nbd -y
bin/forebay --socket $d/st/control.sock status -o wide
