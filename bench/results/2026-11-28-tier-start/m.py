import nbd,time,random,sys
h=nbd.NBD(); h.set_export_name('t'); h.connect_unix('st/nbd.sock'); size=h.get_size(); r=random.Random(1)
t0=time.time(); worst=0; lat=[]; n=0
while time.time()-t0<float(sys.argv[1]):
    o=r.randrange(size>>20)<<20; t=time.time()
    (h.pwrite(b'x'*4096,o) if sys.argv[2]=='w' else h.pread(4096,o)); d=time.time()-t; lat.append(d); n+=1
    time.sleep(0.002)
lat.sort(); print(sys.argv[2], n, 'p50 %.2f p99 %.2f longest %.1f ms'%(lat[n//2]*1e3,lat[n*99//100]*1e3,lat[-1]*1e3))
