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

	"github.com/stretchr/testify/require"
)

// Certificates are an authority, and a certificate of it for servers and clients on the loopback: as files, and ready to use.
type Certificates struct {
	CA, Cert, Key string
	Client        *tls.Config // knows the authority and has the certificate
}

// NewCertificates makes them.
func NewCertificates(t testing.TB) *Certificates {
	t.Helper()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	leaf := x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "lockmigrate test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	ca := leaf
	ca.SerialNumber, ca.Subject.CommonName = big.NewInt(1), "lockmigrate test authority"
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, &ca, &ca, &caKey.PublicKey, caKey)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &leaf, &ca, &key.PublicKey, caKey)
	require.NoError(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return file
	}
	c := &Certificates{CA: write("ca.crt", "CERTIFICATE", caDER), Cert: write("test.crt", "CERTIFICATE", der), Key: write("test.key", "EC PRIVATE KEY", private)}
	c.Client = &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
	parsed, err := x509.ParseCertificate(caDER)
	require.NoError(t, err)
	c.Client.RootCAs.AddCert(parsed)
	pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	require.NoError(t, err)
	c.Client.Certificates = []tls.Certificate{pair}
	return c
}

func (c *Certificates) args() []string {
	return []string{"--tls-cert-file", c.Cert, "--tls-key-file", c.Key, "--tls-ca-cert-file", c.CA, "--tls-auth-clients", "yes"}
}
