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
	Insecure bool // take any certificate: whoever is in between can read and change everything
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

func (f TLSFiles) config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.Insecure}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, badFile("--tls-ca", "name a readable file of PEM certificates", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, badFile("--tls-ca", "name a file of PEM certificates", fmt.Errorf("no certificate in %s", f.CA))
		}
	}
	switch {
	case f.Cert == "" && f.Key == "":
	case f.Cert == "" || f.Key == "":
		return nil, &Error{What: "only one of --tls-cert and --tls-key is given", Advice: "give both", BadInput: true}
	default:
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, badFile("--tls-cert and --tls-key", "name a PEM certificate and the key that belongs to it", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func badFile(flag, hint string, err error) error {
	return &Error{What: fmt.Sprintf("%s: %v", flag, err), Advice: hint, BadInput: true, Cause: err}
}
