# atk.py KIND SOCK VOL N SECS
import sys,select,random,os; from nb import *
kind,sock,vol,N,secs=sys.argv[1],sys.argv[2],sys.argv[3],int(sys.argv[4]),float(sys.argv[5])
if ':' in sock: h,p=sock.rsplit(':',1); sock=(h,int(p))
SIZE=256<<30
def conn_():
    if kind in('bsx','wzx','trimx','cachex'):
        s=hello(sock); run_opt(s,11); ids=run_opt(s,10,meta(vol,['base:allocation','forebay:cache'])); go(s,vol); return s
    if kind in('bs','bs1','rds'):
        s=hello(sock); run_opt(s,8); run_opt(s,10,meta(vol,['base:allocation','forebay:cache'])); go(s,vol); return s
    return open_simple(sock,vol)
MAX=(1<<32)-(1<<20)
def blk():
    r=random.Random(); o=[]
    for i in range(512):
        off=r.randrange(SIZE>>30)<<30; off=min(off,SIZE-(4<<30))
        c=i+1
        if kind=='bs': o.append(req(7,c,off,MAX))
        elif kind=='bs1': o.append(req(7,c,off,MAX,8))
        elif kind=='bsx': o.append(ereq(7,c,0,SIZE))
        elif kind=='wz': o.append(req(6,c,off,MAX))
        elif kind=='wznh': o.append(req(6,c,off,MAX,2))
        elif kind=='trim': o.append(req(4,c,off,MAX))
        elif kind=='wzx': o.append(ereq(6,c,1<<30,SIZE-(1<<30)))
        elif kind=='trimx': o.append(ereq(4,c,1<<30,SIZE-(1<<30)))
        elif kind=='cachex': o.append(ereq(5,c,1<<30,SIZE-(1<<30)))
        elif kind=='cache': o.append(req(5,c,off,MAX))
        elif kind in('rd','rdnr'): o.append(req(0,c,off,64<<20 if BIG else 4<<20))
        elif kind=='rd4k': o.append(req(0,c,(1<<30)+r.randrange(1<<24)*4096,4096))
        elif kind=='rdhit': o.append(req(0,c,(64<<20)+r.randrange(64)*4096,4096))
        elif kind=='rds': o.append(req(0,c,(1<<30)+r.randrange(1<<16)*(1<<20),1<<20))
        elif kind=='flush': o.append(req(3,c,0,0))
        elif kind=='fua': o.append(req(1,c,(1<<30)+r.randrange(1<<12)*4096,4096,1)+b'x'*4096+req(3,c,0,0))
        elif kind=='wr': 
            if i<16: o.append(req(1,c,(1<<30)+r.randrange(1<<8)*(1<<20),1<<20)+os.urandom(1<<10)*1024)
        elif kind=='wr4k': o.append(req(1,c,(1<<30)+r.randrange(1<<16)*4096,4096)+b'y'*4096)
        elif kind=='close': o.append(req(6,c,off,MAX)+req(0,c,off,1<<20))
        elif kind=='garbage': o.append(os.urandom(28))
        elif kind=='einval': o.append(req(0,c,SIZE-1,1<<20)+req(99,c,0,0)+req(7,c,0,1<<20))
    return b''.join(o)
BIG=True
ep=select.epoll(); st={}
def add():
    try: s=conn_()
    except Exception as e: print('conn',repr(e)[:150]); return False
    s.setblocking(False); st[s.fileno()]=[s,memoryview(blk()),0,time.monotonic()]; ep.register(s.fileno(),5); return True
end=time.monotonic()+secs; k=sum(add() for _ in range(N)); rx_=tx=0; churn=0
def drop(fd):
    global churn
    ep.unregister(fd); st.pop(fd)[0].close(); churn+=1
while time.monotonic()<end and st or (kind in('close','garbage') and time.monotonic()<end):
    for fd,ev in ep.poll(.2):
        x=st[fd]
        try:
            if ev&1 and kind!='rdnr':
                n=0
                while n<8:
                    d=x[0].recv(1<<20); n+=1
                    if not d: raise EOFError
                    rx_+=len(d)
            if ev&4:
                n=x[0].send(x[1][x[2]:]); tx+=n; x[2]+=n
                if x[2]==len(x[1]): x[2]=0
            if ev&0x18: raise EOFError
        except BlockingIOError: pass
        except Exception as e: 
            drop(fd)
            if not add(): time.sleep(.02)
            continue
        if kind=='rdnr': ep.modify(fd,4) 
        if kind=='close' and time.monotonic()-x[3]>.1: drop(fd); add()
    if kind in('rdnr',): time.sleep(.01)
print(kind,'open',k,'tx',tx,'rx',rx_,'churn',churn)
