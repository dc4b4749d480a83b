package endpoint

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLSFiles are the settings of the --tls-* flags. The zero value uses the system's certificate
// authorities and no certificate of our own.
type TLSFiles struct {
	CA       string // file with PEM certificates that may sign the server's, instead of the system's
	Cert     string // file with our certificate; goes with Key
	Key      string
	Insecure bool // take any certificate: a host in between can read and change everything
}

// refuse returns an error when settings of TLS come with a URL that does not use it: to ignore them would
// leave somebody believing in an encryption that is not there.
func (f TLSFiles) refuse() error {
	for _, s := range []struct {
		flag string
		set  bool
	}{{"--tls-ca", f.CA != ""}, {"--tls-cert", f.Cert != ""}, {"--tls-key", f.Key != ""}, {"--tls-insecure", f.Insecure}} {
		if s.set {
			return &Error{What: s.flag + " is given, but the server URL does not use TLS", Advice: "write rediss:// instead of redis://", BadInput: true}
		}
	}
	return nil
}

func (f TLSFiles) config() (config *tls.Config, err error) {
	config = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.Insecure}
	if f.CA != "" {
		if config.RootCAs, err = Authorities("--tls-ca", f.CA); err != nil {
			return nil, err
		}
	}
	switch {
	case f.Cert == "" && f.Key == "":
	case f.Cert == "" || f.Key == "":
		return nil, &Error{What: "only one of --tls-cert and --tls-key is given", Advice: "give both", BadInput: true}
	default:
		config.Certificates, err = KeyPair("--tls-cert and --tls-key", f.Cert, f.Key)
	}
	return config, err
}

// Authorities reads a file of PEM certificates. An error names the flag.
func Authorities(flag, file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, badFile(flag, "name a readable file of PEM certificates", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, badFile(flag, "name a file of PEM certificates", fmt.Errorf("no certificate in %s", file))
	}
	return pool, nil
}

// KeyPair reads a certificate and its key. An error names the flags.
func KeyPair(flags, cert, key string) ([]tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, badFile(flags, "name a PEM certificate and the key that belongs to it", err)
	}
	return []tls.Certificate{pair}, nil
}

func badFile(flag, hint string, err error) error {
	return &Error{What: fmt.Sprintf("%s: %v", flag, err), Advice: hint, BadInput: true, Cause: err}
}
