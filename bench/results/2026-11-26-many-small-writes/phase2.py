import sys,subprocess,json,time,os
from nb import stat
D=sys.argv[1]; U=D+'/st/nbd.sock'; pid=int(open(D+'/pid').read())
def phase(kind,N,secs=3,vol='atk',sock=None,hv=('data','atk')):
    for f in ('go','h_data.rdy','h_atk.rdy'):
        try: os.unlink(D+'/'+f)
        except OSError: pass
    hs=[subprocess.Popen(['/usr/bin/python3','hon2.py',U,v,f'{D}/h_{v}',str(secs)]) for v in hv]
    t=time.time()
    while not all(os.path.exists(f'{D}/h_{v}.rdy') for v in hv) and time.time()-t<20: time.sleep(.02)
    w=time.time()-t; a=None
    if kind!='none':
        a=subprocess.Popen(['nice','-n','10','/usr/bin/python3','atk.py',kind,sock or U,vol,str(N),str(secs+1.5)],stdout=subprocess.PIPE,text=True); time.sleep(.7)
    open(D+'/go','w').close(); time.sleep(secs/2); st=stat(pid)
    for h in hs:
        try: h.wait(40)
        except subprocess.TimeoutExpired: h.kill(); print('honest hung >40s')
    out=''
    if a:
        try: out=a.communicate(timeout=10)[0].strip().replace('\n',' | ')[-120:]
        except subprocess.TimeoutExpired: a.kill(); out='atk killed'
    for v in hv:
        try: r=json.load(open(f'{D}/h_{v}')); os.unlink(f'{D}/h_{v}')
        except Exception as e: r='NO RESULT'
        print(f'{kind:8s} N={N:<3d} {v:5s} {r}',flush=True)
    print('    setup %.1f'%w,st,out,flush=True)
if __name__=='__main__':
    for x in sys.argv[2].split(','):
        k,n=x.split('/'); phase(k,int(n),float(sys.argv[3]))
