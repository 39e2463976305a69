package telemetry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// The exporters.
const (
	toOTLP    = "otlp"
	toConsole = "console"
	toNowhere = "none"
)

// environment is what the variables ask for. Those that say how (where to, with which headers, how often, how much of it)
// are read by the SDK, and only checked here: it goes on without a value that it can not read, and says so to nobody.
type environment struct {
	traces, metrics string   // the exporters
	secrets         []string // what stands in headers
}

// readEnvironment returns nil when nothing is asked for.
func readEnvironment() (*environment, error) {
	if strings.EqualFold(value("OTEL_SDK_DISABLED"), "true") {
		return nil, nil
	}
	e := &environment{traces: exporter("TRACES"), metrics: exporter("METRICS")}
	if e.traces == toNowhere && e.metrics == toNowhere {
		return nil, nil
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	for _, name := range []string{"HEADERS", "TRACES_HEADERS", "METRICS_HEADERS"} {
		for _, header := range headers(value("OTEL_EXPORTER_OTLP_" + name)) {
			e.secrets = append(e.secrets, header)
			e.secrets = append(e.secrets, strings.Fields(header)...) // Bearer and Basic do not belong to the secret
		}
	}
	slices.SortFunc(e.secrets, func(a, b string) int { return len(b) - len(a) }) // the whole before its parts
	return e, nil
}

// value is a variable's, without the white space around it. One that is set to nothing is not set.
func value(name string) string { return strings.TrimSpace(os.Getenv(name)) }

func endpointSet(signal string) bool {
	return value("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || value("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
}

// exporter is where a signal goes: where its own variable says, else to the endpoint, if one is set.
func exporter(signal string) string {
	if named := value("OTEL_" + signal + "_EXPORTER"); named != "" {
		return strings.ToLower(named)
	}
	if endpointSet(signal) {
		return toOTLP
	}
	return toNowhere
}

// check returns an error with a line for each variable that is wrong.
func (e *environment) check() error {
	c := &checker{}
	c.oneOf("OTEL_SDK_DISABLED", "true", "false")
	c.oneOf("OTEL_TRACES_EXPORTER", toOTLP, toConsole, toNowhere)
	c.oneOf("OTEL_METRICS_EXPORTER", toOTLP, toConsole, toNowhere)
	c.is("OTEL_RESOURCE_ATTRIBUTES", "a list such as deployment.environment.name=prod,team=crm, with special characters as %XX", arePairs)
	if e.traces != toNowhere {
		c.sampler()
		c.milliseconds("OTEL_BSP_SCHEDULE_DELAY")
		c.milliseconds("OTEL_BSP_EXPORT_TIMEOUT")
		c.is("OTEL_BSP_MAX_QUEUE_SIZE", "a whole number from 1 to 1000000", isWhole(1, 1_000_000))
		c.is("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "a whole number from 1 to 1000000", isWhole(1, 1_000_000))
	}
	if e.metrics != toNowhere {
		c.milliseconds("OTEL_METRIC_EXPORT_INTERVAL")
		c.milliseconds("OTEL_METRIC_EXPORT_TIMEOUT")
	}
	prefixes := []string{}
	if e.traces == toOTLP {
		prefixes = append(prefixes, "OTEL_EXPORTER_OTLP_TRACES_")
	}
	if e.metrics == toOTLP {
		prefixes = append(prefixes, "OTEL_EXPORTER_OTLP_METRICS_")
		c.oneOf("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "cumulative", "delta", "lowmemory")
	}
	if len(prefixes) > 0 {
		prefixes = append([]string{"OTEL_EXPORTER_OTLP_"}, prefixes...)
	}
	for _, prefix := range prefixes {
		c.otlp(prefix)
	}
	if len(c.wrong) == 0 {
		return nil
	}
	return errors.New(strings.Join(c.wrong, "\n"))
}

// checker collects the variables that are wrong.
type checker struct{ wrong []string }

func (c *checker) otlp(prefix string) {
	// The one that the exporters of both signals speak over HTTP.
	c.is(prefix+"PROTOCOL", "http/protobuf: gRPC is not built in, and collectors take http/protobuf on port 4318 as a rule", func(v string) bool {
		return strings.EqualFold(v, "http/protobuf")
	})
	c.hidden(prefix+"ENDPOINT", "a URL such as http://collector:4318, without user, query and fragment: credentials belong to "+prefix+"HEADERS", isEndpoint)
	c.hidden(prefix+"HEADERS", "a list such as api-key=secret,x-team=crm, with special characters of a value as %XX (a space is %20)", areHeaders)
	c.oneOf(prefix+"COMPRESSION", "gzip", "none")
	c.milliseconds(prefix + "TIMEOUT")
	c.oneOf(prefix+"INSECURE", "true", "false")
	c.is(prefix+"CERTIFICATE", "the path of a file with certificates in PEM", func(v string) bool {
		pem, err := os.ReadFile(v)
		return err == nil && x509.NewCertPool().AppendCertsFromPEM(pem)
	})
	certificate, key := value(prefix+"CLIENT_CERTIFICATE"), value(prefix+"CLIENT_KEY")
	if certificate == "" && key == "" {
		return
	}
	if _, err := tls.LoadX509KeyPair(certificate, key); err != nil {
		c.wrong = append(c.wrong, fmt.Sprintf("%[1]sCLIENT_CERTIFICATE and %[1]sCLIENT_KEY are not the paths of a certificate and its key in PEM; set both, or neither", prefix))
	}
}

func (c *checker) sampler() {
	c.oneOf("OTEL_TRACES_SAMPLER", "always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio")
	if strings.HasSuffix(strings.ToLower(value("OTEL_TRACES_SAMPLER")), "traceidratio") {
		c.is("OTEL_TRACES_SAMPLER_ARG", "the share of calls that are traced, from 0 to 1", func(v string) bool {
			share, err := strconv.ParseFloat(v, 64)
			return err == nil && share >= 0 && share <= 1
		})
	}
}

// is notes a variable that is set and not right.
func (c *checker) is(name, may string, right func(string) bool) {
	if v := value(name); v != "" && !right(v) {
		c.wrong = append(c.wrong, fmt.Sprintf("%s is %q; it may be %s", name, v, may))
	}
}

// hidden is is, for a variable that may hold a secret.
func (c *checker) hidden(name, may string, right func(string) bool) {
	if v := value(name); v != "" && !right(v) {
		c.wrong = append(c.wrong, fmt.Sprintf("%s is set to what it can not be (its value is not shown); it may be %s", name, may))
	}
}

func (c *checker) oneOf(name string, words ...string) {
	last := len(words) - 1
	c.is(name, strings.Join(words[:last], ", ")+" or "+words[last], func(v string) bool { return slices.Contains(words, strings.ToLower(v)) })
}

func (c *checker) milliseconds(name string) {
	c.is(name, "a whole number of milliseconds from 1 to 86400000", isWhole(1, 86_400_000))
}

func isWhole(least, most int) func(string) bool {
	return func(v string) bool {
		n, err := strconv.Atoi(v)
		return err == nil && n >= least && n <= most
	}
}

// isEndpoint refuses what the SDK would leave out in silence.
func isEndpoint(v string) bool {
	u, err := url.Parse(v)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

func areHeaders(v string) bool {
	for _, pair := range pairs(v) {
		name, text, found := strings.Cut(pair, "=")
		text, err := url.PathUnescape(text)
		if !found || err != nil || !headerName.MatchString(strings.TrimSpace(name)) || strings.ContainsFunc(text, unicode.IsControl) {
			return false
		}
	}
	return true
}

// headers are the values of headers.
func headers(v string) []string {
	var all []string
	for _, pair := range pairs(v) {
		_, text, _ := strings.Cut(pair, "=")
		if plain, err := url.PathUnescape(text); err == nil {
			all = append(all, strings.TrimSpace(plain))
		}
	}
	return all
}

func arePairs(v string) bool {
	return !slices.ContainsFunc(strings.Split(v, ","), func(pair string) bool {
		name, text, found := strings.Cut(pair, "=")
		_, err := url.PathUnescape(text)
		return !found || strings.TrimSpace(name) == "" || err != nil
	})
}

// pairs are the parts of a list with commas between, without empty ones.
func pairs(v string) []string {
	return slices.DeleteFunc(strings.Split(v, ","), func(pair string) bool { return strings.TrimSpace(pair) == "" })
}
