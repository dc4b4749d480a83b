package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificates are an authority, a server's certificate and a client's, as files and ready to use.
type Certificates struct {
	CA, ServerCert, ServerKey, ClientCert, ClientKey string
	Client                                           *tls.Config // knows the authority and has the client's certificate
}

// NewCertificates makes certificates for the loopback.
func NewCertificates(t testing.TB) *Certificates {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		must(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return file
	}
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(err)
		return k
	}
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		}
	}
	caKey := key()
	ca := template(1, "lockmigrate test authority")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	must(err)
	signed := func(serial int64, name string) (certFile, keyFile string) {
		k := key()
		der, err := x509.CreateCertificate(rand.Reader, template(serial, name), ca, &k.PublicKey, caKey)
		must(err)
		private, err := x509.MarshalECPrivateKey(k)
		must(err)
		return write(name+".crt", "CERTIFICATE", der), write(name+".key", "EC PRIVATE KEY", private)
	}

	c := &Certificates{CA: write("ca.crt", "CERTIFICATE", caDER)}
	c.ServerCert, c.ServerKey = signed(2, "server")
	c.ClientCert, c.ClientKey = signed(3, "client")
	pool := x509.NewCertPool()
	parsed, err := x509.ParseCertificate(caDER)
	must(err)
	pool.AddCert(parsed)
	pair, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	must(err)
	c.Client = &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
	return c
}

// TLS starts a real server that takes nothing but TLS, and only clients with a certificate.
func TLS(t testing.TB, c *Certificates, args ...string) *Server {
	t.Helper()
	Need(t, Redis)
	s := newServer(t, append(c.args(), args...)...)
	s.tls = c.Client
	s.Start()
	return s
}

func (c *Certificates) args() []string {
	return []string{
		"--tls-cert-file", c.ServerCert, "--tls-key-file", c.ServerKey, "--tls-ca-cert-file", c.CA, "--tls-auth-clients", "yes",
	}
}
