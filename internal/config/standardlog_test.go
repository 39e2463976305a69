package config_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gemworker/gem/internal/config"
)

// standardLog routes Go's standard log to the returned lines, of JSON, while a test runs.
func standardLog(t *testing.T) <-chan string {
	t.Helper()
	writer, flags, prefix := stdlog.Writer(), stdlog.Flags(), stdlog.Prefix()
	t.Cleanup(func() {
		stdlog.SetOutput(writer)
		stdlog.SetFlags(flags)
		stdlog.SetPrefix(prefix)
	})
	lines := make(sentLines, 10)
	config.RouteStandardLog(load(t, map[string]string{"LOG_LEVEL": "debug"}).LoggerTo(lines))
	return lines
}

type sentLines chan string

func (l sentLines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestWhatAServerSendsWithoutARequestReachesNoLog(t *testing.T) {
	lines := standardLog(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	idle := make(chan struct{})
	go func() {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		<-idle
		_, _ = io.WriteString(c, "sk-secret-of-the-worker\x1b[2J\r\n\r\n")
		_, _ = io.Copy(io.Discard, c)
	}()
	client := &http.Client{Transport: &http.Transport{}}
	resp, err := client.Get(fmt.Sprintf("http://%s/", listener.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	close(idle)
	line := <-lines
	if strings.Contains(line, "secret") || !strings.Contains(line, `"level":"debug"`) {
		t.Errorf("the log has %s", line)
	}
}

func TestTheStandardLogIsBoundedAndEscaped(t *testing.T) {
	lines := standardLog(t)
	stdlog.Printf("one\ntwo \x1b[2J \u202e %s", strings.Repeat("x", 10_000))
	text := <-lines
	var line struct{ Level, Line string }
	if err := json.Unmarshal([]byte(text), &line); err != nil {
		t.Fatal(err)
	}
	if line.Level != zapcore.WarnLevel.String() || !strings.HasPrefix(line.Line, "one two ") || len(line.Line) > 510 ||
		strings.ContainsAny(text, "\x1b\u202e") || strings.Count(text, "\n") != 1 {
		t.Errorf("the log has %q", text)
	}
	config.RouteStandardLog(zap.NewNop())
	stdlog.Print("three")
	if len(lines) > 0 {
		t.Errorf("the log has %q", <-lines)
	}
}
