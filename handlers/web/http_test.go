package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/internal/testing/switching"
	"github.com/gemworker/gem/receipts"
)

func serve(t *testing.T, handler http.HandlerFunc) (server *httptest.Server, hostPort string) {
	t.Helper()
	server = httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server, strings.TrimPrefix(server.URL, "http://")
}

func request(t *testing.T, h *HTTP, in Request) (Response, receipts.HandlerEffects, error) {
	t.Helper()
	if in.Method == "" {
		in.Method = http.MethodGet
	}
	call := &handlers.Call{ID: "0d9f7c1e-52b8-4a55-9c35-8c5f6a3d2b10", Tool: "http.request"}
	out, err := h.Request(t.Context(), call, in)
	return out, call.Effects(), err
}

// allowing is the domain with these hosts listed.
func allowing(hosts ...string) *HTTP { return opened(hosts, nil, nil) }

// opened has a resolver and certificates to trust; nil means the system's.
func opened(hosts []string, resolver *net.Resolver, roots *x509.CertPool) *HTTP {
	d := Domain()
	if err := binding.Configure(func(string) string { return strings.Join(hosts, ",") }, d); err != nil {
		panic(err)
	}
	h := d.Tools.(*HTTP)
	h.resolveWith(resolver)
	h.transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return h
}

// reason is what a failure says to machines.
func reason(err error) string {
	failure := (*handlers.Failure)(nil)
	if !errors.As(err, &failure) {
		return fmt.Sprintf("no failure: %v", err)
	}
	switch details := failure.Details.(type) {
	case map[string]string:
		return details["reason"]
	case map[string]any:
		return fmt.Sprint(details["reason"])
	}
	return fmt.Sprintf("no reason: %v", failure)
}

func TestHTTPIsNotConfiguredUntilAHostIsListed(t *testing.T) {
	t.Parallel()
	for _, hosts := range [][]string{nil, {""}, {" ", ""}} {
		_, _, err := request(t, allowing(hosts...), Request{URL: "https://api.example.com/"})
		missing := (*handlers.NotConfigured)(nil)
		if !errors.As(err, &missing) {
			t.Fatalf("%q: got %v, want not_configured", hosts, err)
		}
		if diff := cmp.Diff([]string{"HTTP_ALLOWED_HOSTS"}, missing.RequiredEnv); diff != "" || len(missing.NextSteps) == 0 {
			t.Errorf("required_env (-want +got):\n%s, next_steps %q", diff, missing.NextSteps)
		}
	}
}

func TestARequestGivesTheAnswerWhateverItsStatus(t *testing.T) {
	t.Parallel()
	_, host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Add("X-Two", "a")
		w.Header().Add("X-Two", "b")
		w.Header().Set("Set-Cookie", "session=secret")
		w.Header().Set("X-Saw", r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("X-Asked")+" "+r.Host)
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write(append([]byte("got "), body...))
	})
	out, effects, err := request(t, allowing(host), Request{
		Method: "PUT", URL: "http://" + host + "/a%2Fb?key=secret#part", Headers: map[string]string{"x-asked": "yes"},
		Body: "ü",
	})
	if err != nil {
		t.Fatal(err)
	}
	if out.StatusCode != http.StatusTeapot || out.Body != "got ü" || out.Truncated {
		t.Errorf("got %+v", out)
	}
	if got, want := out.Headers["X-Saw"], "PUT /a%2Fb?key=secret yes "+host; got != want {
		t.Errorf("the server saw %q, want %q", got, want)
	}
	if got := out.Headers["X-Two"]; got != "a, b" {
		t.Errorf("repeated header: got %q", got)
	}
	if _, there := out.Headers["Set-Cookie"]; there {
		t.Error("the answer holds a cookie")
	}
	want := []receipts.ExternalCall{{Service: "http", Endpoint: "http://" + host + "/a%2Fb",
		StatusCode: http.StatusTeapot}}
	if diff := cmp.Diff(want, effects.ExternalCalls); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
}

func TestAServerThatSwitchesProtocolsHoldsNoCall(t *testing.T) {
	t.Parallel()
	url, closed := switching.New(t)
	h := allowing(strings.TrimPrefix(url, "http://"))
	got, err := h.Request(t.Context(), &handlers.Call{}, Request{Method: "GET", URL: url})
	if err != nil || got.StatusCode != http.StatusSwitchingProtocols || got.Body != "" {
		t.Errorf("%+v, %v", got, err)
	}
	<-closed
}

func TestTheListDecidesByHostAndPort(t *testing.T) {
	t.Parallel()
	list := []string{"api.example.com", "Other.Example:8443", "BÜCHER.example.", "[2001:db8::1]:8443", "::2", "192.0.2.7",
		"up.example:80"}
	for in, want := range map[string]string{
		"https://api.example.com/x":                  "https://api.example.com/x",
		"http://API.Example.COM./x?q=1#f":            "http://api.example.com/x?q=1",
		"https://api.example.com:443/":               "https://api.example.com/",
		"https://api.example.com:/":                  "https://api.example.com/",
		"https://api.example.com:0443/":              "https://api.example.com/",
		"HTTPS://api.example.com":                    "https://api.example.com",
		"https://bücher.example/":                    "https://xn--bcher-kva.example/",
		"https://xn--bcher-kva.example/":             "https://xn--bcher-kva.example/",
		"https://other.example:8443/":                "https://other.example:8443/",
		"http://other.example:8443/":                 "http://other.example:8443/",
		"https://[2001:DB8:0:0::1]:8443/":            "https://[2001:db8::1]:8443/",
		"http://[::2]/":                              "http://[::2]/",
		"https://192.0.2.7/":                         "https://192.0.2.7/",
		"http://up.example/":                         "http://up.example/",
		"https://up.example:80/":                     "https://up.example:80/",
		"https://up.example/":                        "host_not_allowed",
		"https://other.example/":                     "host_not_allowed",
		"https://api.example.com:8443/":              "host_not_allowed",
		"http://api.example.com:443/":                "host_not_allowed",
		"https://sub.api.example.com/":               "host_not_allowed",
		"https://api.example.com.evil.test/":         "host_not_allowed",
		"https://[::ffff:192.0.2.7]/":                "host_not_allowed",
		"https://3221225991/":                        "host_not_allowed",
		"https://evil.test/https://api.example.com/": "host_not_allowed",
		"https://evil.test#@api.example.com/":        "host_not_allowed",
		"https://user@api.example.com/":              "credentials_in_url",
		"https://api.example.com@evil.test/":         "credentials_in_url",
		"https://:p@api.example.com/":                "credentials_in_url",
		"ftp://api.example.com/":                     "invalid_url",
		"file:///etc/passwd":                         "invalid_url",
		"//api.example.com/":                         "invalid_url",
		"https:api.example.com":                      "invalid_url",
		"https:///x":                                 "invalid_url",
		"api.example.com":                            "invalid_url",
		"https://api.example.com\\@evil.test":        "invalid_url",
		"https://api.example.com:99999/":             "invalid_url",
		"https://api.example.com:0/":                 "invalid_url",
		"https://api..example.com/":                  "invalid_url",
		"https://[::2%25eth0]/":                      "invalid_url",
		"https://api.example.com\r\nX: y/":           "invalid_url",
		"https://a b/":                               "invalid_url",
	} {
		got := ""
		if u, err := allowing(list...).config.AllowedHosts.check(in); err != nil {
			got = reason(err)
		} else {
			got = u.String()
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestAListedEntryThatIsNoHostIsReported(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{"https://api.example.com", "api.example.com/path", "*.example.com", "a:b", "a:0",
		"a:70000", "a:",
		"[::1", "::1]", "[name]:80", "fe80::1%eth0", "user@host", "a..b", strings.Repeat("a", 64) + ".example"} {
		err := binding.Configure(func(string) string { return "ok.example," + entry }, Domain())
		if err == nil || !strings.HasPrefix(err.Error(), "HTTP_ALLOWED_HOSTS is ") ||
			!strings.Contains(err.Error(), "without scheme and path") {
			t.Errorf("%q: %v", entry, err)
		}
	}
	if err := new(allowList).Decode("api.example.com, localhost:8080,127.0.0.1:80,[::1]:80,[::1],::1, spaced.example " +
		",a_b.example.,"); err != nil {
		t.Error(err)
	}
}

// The samples of RFC 3492, as far as they are one label in lower case.
func TestInternationalNamesAreComparedInASCII(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"bücher.example": "xn--bcher-kva.example",
		"münchen-ost.de": "xn--mnchen-ost-9db.de",
		"他们为什么不说中文":      "xn--ihqwcrb4cv8a8dqg056pqjye",
		"почемужеонинеговорятпорусски": "xn--b1abfaaepdrnnbgefbadotcwatmq2g4l",
		"☃.net": "xn--n3h.net",
	} {
		if got, err := normalHost(in); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", in, got, err, want)
		}
	}
}

func TestOnlyPublicAddressesAreReached(t *testing.T) {
	t.Parallel()
	for _, public := range []string{"1.1.1.1", "93.184.216.34", "172.15.255.255", "172.32.0.1", "100.63.255.255",
		"100.128.0.1", "223.255.255.255",
		"2606:4700:4700::1111", "2a00::1"} {
		if !isPublic(netip.MustParseAddr(public)) {
			t.Errorf("%s is public", public)
		}
	}
	for _, other := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.254", "127.0.0.1", "127.255.0.1", "169.254.169.254",
		"172.16.0.1",
		"172.31.255.255", "192.0.0.8", "192.168.1.1", "198.18.0.1", "198.19.255.255", "224.0.0.1", "239.1.1.1", "240.0.0.1",
		"255.255.255.255",
		"::", "::1", "::ffff:1.1.1.1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::101:101",
		"64:ff9b:1::1", "100::1",
		"2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1",
		"ff02::1", "2a00::1%eth0",
	} {
		if isPublic(netip.MustParseAddr(other)) {
			t.Errorf("%s is not public", other)
		}
	}
}

func TestAPrivateAddressIsReachedOnlyThroughAnEntryWithItsPort(t *testing.T) {
	t.Parallel()
	var hits atomic.Int32
	_, host := serve(t, func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	_, port, _ := net.SplitHostPort(host)
	for _, c := range []struct{ listed, url, want string }{
		{"127.0.0.1", "http://127.0.0.1/", "private_address"},
		{"localhost", "http://localhost/", "private_address"},
		{"169.254.169.254", "http://169.254.169.254/latest/meta-data/", "private_address"},
		{"::1", "http://[::1]/", "private_address"},
		{"::ffff:127.0.0.1", "http://[::ffff:127.0.0.1]/", "private_address"},
		{"0.0.0.0", "http://0.0.0.0/", "private_address"},
		{"127.0.0.1", "http://" + host + "/", "host_not_allowed"},
		{"localhost:" + port, "http://" + host + "/", "host_not_allowed"},
	} {
		_, effects, err := request(t, allowing(c.listed), Request{URL: c.url})
		if got := reason(err); got != c.want {
			t.Errorf("%s with %s listed: got %s, want %s", c.url, c.listed, got, c.want)
		}
		if len(effects.ExternalCalls) != 0 {
			t.Errorf("%s: effects of a request that was not made: %v", c.url, effects.ExternalCalls)
		}
	}
	if n := hits.Load(); n != 0 {
		t.Fatalf("the server was reached %d times", n)
	}
	for _, name := range []string{"127.0.0.1:" + port, "localhost:" + port} {
		if _, _, err := request(t, allowing(name), Request{URL: "http://" + name + "/"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := hits.Load(); n != 2 {
		t.Errorf("the server was reached %d times, want 2", n)
	}
}

// A name that was public when somebody looked and is private when the connection is made.
func TestANameThatComesToPointInsideIsNotReached(t *testing.T) {
	t.Parallel()
	var hits atomic.Int32
	_, host := serve(t, func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	_, port, _ := net.SplitHostPort(host)
	resolver := answering(t, "127.0.0.1")

	listed := opened([]string{"rebound.example"}, resolver, nil)
	_, _, err := request(t, listed, Request{URL: "http://rebound.example/"})
	if got := reason(err); got != "private_address" {
		t.Errorf("got %s, want private_address", got)
	}
	if hits.Load() != 0 {
		t.Error("the server was reached")
	}

	withPort := opened([]string{"rebound.example:" + port}, resolver, nil)
	if _, _, err := request(t, withPort, Request{URL: "http://rebound.example:" + port + "/"}); err != nil {
		t.Errorf("listed with its port: %v", err)
	}
	if hits.Load() != 1 {
		t.Error("the server was not reached")
	}
}

// answering is a resolver for which every name has one IPv4 address.
func answering(t *testing.T, address string) *net.Resolver {
	t.Helper()
	ip := netip.MustParseAddr(address).As4()
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer func() { _ = server.Close() }()
			for {
				var size uint16 // a stream of messages, each after its length
				if binary.Read(server, binary.BigEndian, &size) != nil {
					return
				}
				query := make([]byte, size)
				if _, err := io.ReadFull(server, query); err != nil {
					return
				}
				end := 12
				for query[end] != 0 {
					end += int(query[end]) + 1
				}
				question := query[12 : end+5]
				answers := byte(0)
				if query[end+2] == 1 { // type A
					answers = 1
				}
				reply := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, answers, 0, 0, 0, 0}, question...)
				if answers == 1 {
					reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
					reply = append(reply, ip[:]...)
				}
				if _, err := server.Write(append([]byte{byte(len(reply) >> 8), byte(len(reply))}, reply...)); err != nil {
					return
				}
			}
		}()
		return client, nil
	}}
}

func TestARedirectIsCheckedLikeTheRequest(t *testing.T) {
	t.Parallel()
	_, other := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "other") })
	_, host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "home")
	})
	_, port, _ := net.SplitHostPort(host)
	h := allowing(host, "localhost")
	for to, want := range map[string]string{
		"/home":                         "home",
		"home?x=1":                      "home",
		"//" + host + "/home":           "home",
		"http://" + other + "/":         "host_not_allowed",
		"http://localhost/":             "private_address",
		"http://localhost:" + port:      "host_not_allowed",
		"http://169.254.169.254/latest": "host_not_allowed",
		"http://u:p@" + host + "/":      "credentials_in_url",
		"file:///etc/passwd":            "invalid_url",
		"http://[bad":                   "invalid_redirect",
	} {
		out, _, err := request(t, h, Request{URL: "http://" + host + "/?to=" + url.QueryEscape(to)})
		got := out.Body
		if err != nil {
			got = reason(err)
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", to, got, want)
		}
	}
}

func TestARequestWhoseRedirectLeadsNowhereWasSent(t *testing.T) {
	t.Parallel()
	closed, nowhere := serve(t, nil)
	closed.Close()
	_, host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+r.URL.Query().Get("to"), http.StatusTemporaryRedirect)
	})
	for _, to := range []string{nowhere, "name.invalid"} {
		h := allowing(host, to)
		_, _, err := request(t, h, Request{Method: "POST", URL: "http://" + host + "/?to=" + to, Body: "b"})
		transient, ok := errors.AsType[*handlers.TransientError](err)
		if !ok || transient.NothingSent || strings.Contains(err.Error(), "nothing was sent") ||
			!strings.Contains(err.Error(), "redirected") {
			t.Errorf("a redirect to %s: got %v", to, err)
		}
		_, _, err = request(t, h, Request{Method: "POST", URL: "http://" + to, Body: "b"})
		if transient, ok := errors.AsType[*handlers.TransientError](err); !ok || !transient.NothingSent {
			t.Errorf("a request to %s: got %v", to, err)
		}
	}
}

func TestFiveRedirectsAreFollowedAndNotSix(t *testing.T) {
	t.Parallel()
	_, host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n, _ := strconv.Atoi(r.URL.Path[1:]); n > 0 {
			http.Redirect(w, r, "/"+strconv.Itoa(n-1), http.StatusFound)
		}
	})
	_, effects, err := request(t, allowing(host), Request{URL: "http://" + host + "/5"})
	if err != nil || len(effects.ExternalCalls) != 6 {
		t.Errorf("five redirects: got %v and %d requests, want 6", err, len(effects.ExternalCalls))
	}
	_, effects, err = request(t, allowing(host), Request{URL: "http://" + host + "/6"})
	if got := reason(err); got != "too_many_redirects" || len(effects.ExternalCalls) != 6 {
		t.Errorf("six redirects: got %s and %d requests", got, len(effects.ExternalCalls))
	}
}

func TestARedirectElsewhereLeavesTheHeadersBehind(t *testing.T) {
	t.Parallel()
	echo := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s auth=%q cookie=%q custom=%q type=%q body=%q", r.Method, r.Header.Get("Authorization"),
			r.Header.Get("Cookie"),
			r.Header.Get("X-Api-Key"), r.Header.Get("Content-Type"), body)
	}
	_, other := serve(t, echo)
	var host string
	_, host = serve(t, func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.URL.Query().Get("code"))
		switch r.URL.Path {
		case "/same":
			w.Header().Set("Location", "/echo")
			w.WriteHeader(code)
		case "/other":
			w.Header().Set("Location", "http://"+other+"/echo")
			w.WriteHeader(code)
		default:
			echo(w, r)
		}
	})
	h := allowing(host, other)
	for path, want := range map[string]string{
		"/same?code=302":  `GET auth="a" cookie="c" custom="k" type="" body=""`,
		"/same?code=303":  `GET auth="a" cookie="c" custom="k" type="" body=""`,
		"/same?code=307":  `POST auth="a" cookie="c" custom="k" type="text/plain" body="b"`,
		"/other?code=301": `GET auth="" cookie="" custom="" type="" body=""`,
		"/other?code=308": `POST auth="" cookie="" custom="" type="text/plain" body="b"`,
	} {
		out, _, err := request(t, h, Request{Method: "POST", URL: "http://" + host + path, Body: "b",
			Headers: map[string]string{"Authorization": "a", "Cookie": "c", "X-Api-Key": "k", "Content-Type": "text/plain"}})
		if err != nil || out.Body != want {
			t.Errorf("%s: got %s, %v, want %s", path, out.Body, err, want)
		}
	}
}

func TestARedirectFromHTTPSToHTTPIsRefused(t *testing.T) {
	t.Parallel()
	_, plain := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the plain server was reached") })
	secure := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+plain+"/", http.StatusFound)
	}))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // it will complain of a client that does not trust it
	secure.StartTLS()
	t.Cleanup(secure.Close)
	host := strings.TrimPrefix(secure.URL, "https://")
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())

	h := opened([]string{host, plain}, nil, roots)
	_, _, err := request(t, h, Request{URL: secure.URL})
	if got := reason(err); got != "redirect_to_http" {
		t.Errorf("got %s", got)
	}
	// With a certificate that is not trusted nothing is sent, and the service may get another one.
	_, _, err = request(t, allowing(host), Request{URL: secure.URL})
	if transient, ok := errors.AsType[*handlers.TransientError](err); !ok || !transient.NothingSent ||
		!strings.Contains(err.Error(), "certificate") {
		t.Errorf("unknown certificate: got %v", err)
	}
}

func TestHeadersOfTheConnectionAndSmuggledOnesAreRefused(t *testing.T) {
	t.Parallel()
	_, host := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the server was reached") })
	for name, want := range map[string]string{
		"Host": "header_not_allowed", "content-length": "header_not_allowed", "Transfer-Encoding": "header_not_allowed",
		"Connection": "header_not_allowed", "keep-alive": "header_not_allowed", "TE": "header_not_allowed",
		"Upgrade":             "header_not_allowed",
		"Proxy-Authorization": "header_not_allowed", "Expect": "header_not_allowed",
		"": "invalid_header", "a b": "invalid_header", "X:": "invalid_header", "X\r\nHost": "invalid_header",
		"Ü": "invalid_header",
	} {
		_, _, err := request(t, allowing(host), Request{URL: "http://" + host, Headers: map[string]string{name: "v"}})
		if got := reason(err); got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
	}
	for _, value := range []string{"a\r\nX-Evil: 1", "a\nb", "a\x00b", "a\x7fb"} {
		_, _, err := request(t, allowing(host), Request{URL: "http://" + host, Headers: map[string]string{"X-A": value}})
		if got := reason(err); got != "invalid_header" {
			t.Errorf("%q: got %s", value, got)
		}
	}
	_, _, err := request(t, allowing(host), Request{URL: "http://" + host,
		Headers: map[string]string{"X-A": "1", "x-a": "2"}})
	if got := reason(err); got != "invalid_header" {
		t.Errorf("twice: got %s", got)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	t.Parallel()
	const most = 256 << 10
	bodies := map[string][]byte{
		"/exact":  bytes.Repeat([]byte("a"), most),
		"/longer": bytes.Repeat([]byte("a"), most+1),
		"/letter": append(bytes.Repeat([]byte("a"), most-1), "üü"...), // cut inside a letter
		"/binary": {0xff, 0xfe, 'x', 0x00, 0xc3},
		"/nuls":   make([]byte, most), // grows when it is made storable
	}
	_, host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bomb" {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer func() { _ = z.Close() }()
			zeros := make([]byte, 1<<20)
			for range 4 {
				if _, err := z.Write(zeros); err != nil {
					return
				}
			}
			return
		}
		_, _ = w.Write(bodies[r.URL.Path])
	})
	for path, want := range map[string]struct {
		length    int
		truncated bool
	}{
		"/exact": {most, false}, "/longer": {most, true}, "/letter": {most - 1, true}, "/binary": {3 + 1 + 3 + 3, false},
		"/nuls": {most - most%3, true}, "/bomb": {most - most%3, true},
	} {
		out, _, err := request(t, allowing(host), Request{URL: "http://" + host + path})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if len(out.Body) != want.length || out.Truncated != want.truncated {
			t.Errorf("%s: got %d bytes, truncated %t, want %d, %t", path, len(out.Body), out.Truncated, want.length,
				want.truncated)
		}
		if !utf8.ValidString(out.Body) || strings.ContainsRune(out.Body, 0) {
			t.Errorf("%s: the body can not be stored", path)
		}
	}
	_, _, err := request(t, allowing(host), Request{Method: "POST", URL: "http://" + host,
		Body: strings.Repeat("a", 1<<20+1)})
	if got := reason(err); got != "body_too_large" {
		t.Errorf("got %s", got)
	}
}

func TestHeadersOfAnAnswerAreBounded(t *testing.T) {
	t.Parallel()
	_, host := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Long", strings.Repeat("a", 70<<10))
	})
	_, _, err := request(t, allowing(host), Request{URL: "http://" + host})
	if got := reason(err); got != "headers_too_large" {
		t.Errorf("got %s", got)
	}
}

func TestAServerThatCanNotBeReachedMayBeReachedLater(t *testing.T) {
	t.Parallel()
	server, host := serve(t, nil)
	server.Close()
	_, hangsUp := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, _ := w.(http.Hijacker).Hijack()
		_ = conn.Close()
	})
	_, breaksOff := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "four")
	})
	for _, address := range []string{host, hangsUp, breaksOff} {
		_, effects, err := request(t, allowing(address), Request{URL: "http://" + address + "/?key=secret"})
		if transient := (*handlers.TransientError)(nil); !errors.As(err, &transient) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("got %v, want a transient error without the query", err)
		}
		if len(effects.ExternalCalls) != 1 {
			t.Errorf("effects: %v", effects.ExternalCalls)
		}
	}
}

func TestARequestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var once sync.Once
	_, host := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		once.Do(cancel)
		<-r.Context().Done()
	})
	_, err := allowing(host).Request(ctx, &handlers.Call{ID: "0d9f7c1e-52b8-4a55-9c35-8c5f6a3d2b10"},
		Request{Method: "GET", URL: "http://" + host})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestNoProxyOfTheEnvironmentIsUsed(t *testing.T) {
	proxy, _ := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the proxy was reached") })
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	h := opened([]string{"api.example.com"}, answering(t, "10.0.0.1"), nil)
	_, _, err := request(t, h, Request{URL: "http://api.example.com/"})
	if got := reason(err); got != "private_address" {
		t.Errorf("got %s", got)
	}
}
