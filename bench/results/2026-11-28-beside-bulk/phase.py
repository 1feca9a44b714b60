# phase.py DIR KIND N SECS [VOL] [NICE]: an honest client on `data` and one on `other` beside N bulk clients of kind w, r or none on VOL
import sys,subprocess,os,time,json
def q(l): l=sorted(l); return [round(x/1e6,2) for x in (l[len(l)//2],l[int(len(l)*.99)],l[-1])] if l else None
def phase(D,kind,N,secs,vol='data',nice='0',hons=('data','other'),label=''):
    U=D+'/st/nbd.sock'
    for f in os.listdir(D):
        if f=='go' or f.startswith('h_'): os.unlink(D+'/'+f)
    hs=[subprocess.Popen(['nice','-n',nice,'/usr/bin/python3','hon.py',U,v,f'{D}/h_{v}',str(secs)]) for v in hons]
    while hons and not all(os.path.exists(f'{D}/h_{v}.rdy') for v in hons): time.sleep(.01)
    b=None
    if N: b=subprocess.Popen(['nice','-n',nice,'/usr/bin/python3','bulk.py',kind,U,vol,str(N),str(secs+1)],stdout=subprocess.PIPE,text=True); time.sleep(.5)
    open(D+'/go','w').close()
    for h in hs: h.wait()
    tp=b.communicate()[0].strip() if b else '-'
    r={}
    for v in hons:
        L=[x.split() for x in open(f'{D}/h_{v}')]
        for k in 'RW': r[v+k]=q([int(e)-int(s) for kk,s,e in L if kk==k])
    print(label,kind,N,'bulk MiB/s',tp,json.dumps(r),'load',os.getloadavg()[0],flush=True); return r,tp
if __name__=='__main__':
    a=sys.argv; phase(a[1],a[2],int(a[3]),float(a[4]),*(a[5:7]))
