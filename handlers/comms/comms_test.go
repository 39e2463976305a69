package comms

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/http/httptest"
	netmail "net/mail"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/binding"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/testing/switching"
	"github.com/gemworker/gem/internal/testing/testdb"
	"github.com/gemworker/gem/migrations"
	"github.com/gemworker/gem/receipts"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const anID = "0d9f7c1e-52b8-4a55-9c35-8c5f6a3d2b10"

// tablesOf is a database with the tables of the domain.
func tablesOf(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return testdb.Pool(t, testdb.New(t, migrations.Sources(Domain())...))
}

// reason is what a failure says to programs.
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

func serve(t *testing.T, handler http.HandlerFunc) (server *httptest.Server, hostPort string) {
	t.Helper()
	server = httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server, strings.TrimPrefix(server.URL, "http://")
}

// mailServer is a mail server that accepts everything, except for the replies that a test sets.
type mailServer struct {
	host string
	port int
	// replies to a verb instead of the usual one. An empty reply hangs up. "." is the end of a message.
	replies map[string]string
	// offers are the extensions in its answer to EHLO.
	offers []string

	mu       sync.Mutex
	messages []string
	verbs    []string
}

func startMailServer(t *testing.T, replies map[string]string, offers ...string) *mailServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	s := &mailServer{host: address.IP.String(), port: address.Port, replies: replies, offers: offers}
	var conversations sync.WaitGroup
	conversations.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conversations.Go(func() { s.converse(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		conversations.Wait()
	})
	return s
}

func (s *mailServer) converse(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	// say sends the reply to a verb and reports whether the conversation continues.
	say := func(verb, usual string) bool {
		if reply, set := s.replies[verb]; set {
			usual = reply
		}
		if usual == "" {
			return false
		}
		_, err := io.WriteString(conn, usual+"\r\n")
		return err == nil
	}
	if !say("greeting", "220 ready") {
		return
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		verb, _, _ := strings.Cut(strings.ToUpper(strings.TrimSpace(line)), " ")
		s.mu.Lock()
		s.verbs = append(s.verbs, verb)
		s.mu.Unlock()
		usual := "250 fine"
		switch verb {
		case "EHLO":
			usual = "250-here" + strings.Join(append([]string{""}, s.offers...), "\r\n250-") + "\r\n250 8BITMIME"
		case "DATA":
			usual = "354 go on"
		case "AUTH":
			usual = "235 welcome"
		case "QUIT":
			say("QUIT", "221 bye")
			return
		}
		if !say(verb, usual) {
			return
		}
		if verb != "DATA" || s.replies["DATA"] != "" {
			continue
		}
		var message strings.Builder
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if line == ".\r\n" {
				break
			}
			message.WriteString(strings.TrimPrefix(line, ".")) // a line that began with a dot got another one
		}
		s.mu.Lock()
		s.messages = append(s.messages, message.String())
		s.mu.Unlock()
		if !say(".", "250 taken") {
			return
		}
	}
}

func (s *mailServer) received() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.messages...)
}

func (s *mailServer) config() config {
	return config{SMTPHost: s.host, SMTPPort: s.port, SMTPFrom: "Acme Roofing <office@acme.example>", SMTPTLS: "none"}
}

// logRow is what comms_log says of a call's message.
type logRow struct {
	ID, Channel, Recipient, Status, MessageID, Error string
}

func logOf(t *testing.T, db *pgxpool.Pool, callID string) logRow {
	t.Helper()
	var row logRow
	err := db.QueryRow(t.Context(), `select id::text, channel, recipient, status, coalesce(message_id, ''),
		coalesce(error, '')
		from comms_log where call_id = $1`, callID).Scan(&row.ID, &row.Channel, &row.Recipient, &row.Status, &row.MessageID,
		&row.Error)
	if err != nil {
		t.Fatalf("the log of call %s: %v", callID, err)
	}
	return row
}

var aMail = SendEmail{To: "jo@client.example", Subject: "Your roof – a quote", Body: "Dear Jo,\n.\nit leaks. Grüße",
	ContextRef: json.RawMessage(`{"type": "lead", "id": "7"}`)}

func sendMail(t *testing.T, db handlers.DB, smtp config, callID string, in SendEmail) (EmailSent,
	receipts.HandlerEffects,
	error) {
	t.Helper()
	call := &handlers.Call{ID: callID, Tool: "comms.send_email"}
	out, err := (&Comms{db: db, config: smtp}).SendEmail(t.Context(), call, in)
	return out, call.Effects(), err
}

func TestAMailIsLoggedAndHandedOver(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	server := startMailServer(t, nil)
	out, effects, err := sendMail(t, db, server.config(), anID, aMail)
	if err != nil {
		t.Fatal(err)
	}
	const messageID = anID + "@acme.example"
	want := logRow{ID: out.EmailID, Channel: "email", Recipient: "jo@client.example", Status: "sent", MessageID: messageID}
	if diff := cmp.Diff(want, logOf(t, db, anID)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	wantEffects := receipts.HandlerEffects{
		DBWrites:     []receipts.DBWrite{{Table: "comms_log", Action: handlers.Insert, ID: out.EmailID}},
		MessagesSent: []receipts.MessageSent{{Type: "email", Recipient: "jo@client.example", MessageID: messageID}},
	}
	if diff := cmp.Diff(wantEffects, effects); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}

	messages := server.received()
	if len(messages) != 1 {
		t.Fatalf("the server has %d messages, want 1", len(messages))
	}
	message, err := netmail.ReadMessage(strings.NewReader(messages[0]))
	if err != nil {
		t.Fatal(err)
	}
	if got := message.Header.Get("Message-ID"); got != "<"+messageID+">" {
		t.Errorf("Message-ID: got %s", got)
	}
	if got := message.Header.Get("From"); got != `"Acme Roofing" <office@acme.example>` {
		t.Errorf("From: got %s", got)
	}
	body, _ := io.ReadAll(quotedprintable.NewReader(message.Body))
	if got, want := strings.ReplaceAll(string(body), "\r\n", "\n"), aMail.Body; strings.TrimSpace(got) != want {
		t.Errorf("body: got %q, want %q", got, want)
	}
}

// A worker that died after the message left and before the receipt was written.
func TestAMailThatALaterAttemptFindsSentIsNotSentAgain(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	server := startMailServer(t, nil)
	first, _, err := sendMail(t, db, server.config(), anID, aMail)
	if err != nil {
		t.Fatal(err)
	}
	second, effects, err := sendMail(t, db, server.config(), anID, aMail)
	if err != nil || second != first {
		t.Errorf("got %v, %v, want %v", second, err, first)
	}
	if n := len(server.received()); n != 1 {
		t.Errorf("the server has %d messages, want 1", n)
	}
	if len(effects.MessagesSent) != 1 {
		t.Errorf("the receipt would not tell of the message: %+v", effects)
	}
}

func TestAMailThatFailedIsSentByALaterAttempt(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	if _, _, err := sendMail(t, db, startMailServer(t, map[string]string{"MAIL": "451 try later"}).config(), anID,
		aMail); err == nil {
		t.Fatal("the first attempt did not fail")
	}
	if row := logOf(t, db, anID); row.Status != "failed" || !strings.Contains(row.Error, "451") {
		t.Errorf("log after the first attempt: %+v", row)
	}
	out, effects, err := sendMail(t, db, startMailServer(t, nil).config(), anID, aMail)
	if err != nil {
		t.Fatal(err)
	}
	if row := logOf(t, db, anID); row.Status != "sent" || row.Error != "" || row.ID != out.EmailID {
		t.Errorf("log after the second attempt: %+v", row)
	}
	if len(effects.DBWrites) != 1 || effects.DBWrites[0].Action != handlers.Update {
		t.Errorf("effects: %+v", effects.DBWrites)
	}
}

// What the server took is sent, whatever comes after.
func TestAMailThatTheServerTookIsSentWhateverComesAfter(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	for name, replies := range map[string]map[string]string{
		"QUIT refused":    {"QUIT": "500 what"},
		"QUIT unanswered": {"QUIT": ""},
	} {
		id := newID(t, db)
		if _, _, err := sendMail(t, db, startMailServer(t, replies).config(), id, aMail); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if row := logOf(t, db, id); row.Status != "sent" {
			t.Errorf("%s: log %+v", name, row)
		}
	}

	broken := &failsSecond{DB: db}
	if _, effects, err := sendMail(t, broken, startMailServer(t, nil).config(), newID(t, db), aMail); err != nil ||
		len(effects.MessagesSent) != 1 {
		t.Errorf("log not updated: got %v, effects %+v", err, effects)
	}
}

// failsSecond is a database that takes the message's row and then goes away.
type failsSecond struct{ handlers.DB }

func (f *failsSecond) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errors.New("the database went away")
}

func newID(t *testing.T, db *pgxpool.Pool) string {
	t.Helper()
	var id string
	if err := db.QueryRow(t.Context(), `select gen_random_uuid()::text`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestTheReplyOfTheMailServerDecidesWhetherToTryAgain(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	down := startMailServer(t, nil).config()
	down.SMTPPort = 1 // nobody listens there; a port that was free a moment ago may be another test's by now

	const transient = "transient"
	for name, c := range map[string]struct {
		smtp config
		want string
	}{
		"nobody listens": {down, transient},
		"not now":        {startMailServer(t, map[string]string{"greeting": "421 busy"}).config(), transient},
		"never": {startMailServer(t, map[string]string{"greeting": "554 no service"}).config(),
			"smtp_refused"},
		"hangs up at once": {startMailServer(t, map[string]string{"greeting": ""}).config(), transient},
		"sender refused":   {startMailServer(t, map[string]string{"MAIL": "550 not you"}).config(), "smtp_refused"},
		"mailbox busy":     {startMailServer(t, map[string]string{"RCPT": "450 busy"}).config(), transient},
		"no such mailbox": {startMailServer(t, map[string]string{"RCPT": "550 5.1.1 no such user"}).config(),
			"smtp_refused"},
		"hangs up at recipient":  {startMailServer(t, map[string]string{"RCPT": ""}).config(), transient},
		"data refused":           {startMailServer(t, map[string]string{"DATA": "554 no"}).config(), "smtp_refused"},
		"message refused":        {startMailServer(t, map[string]string{".": "554 spam"}).config(), "smtp_refused"},
		"message deferred":       {startMailServer(t, map[string]string{".": "452 full"}).config(), transient},
		"hangs up after message": {startMailServer(t, map[string]string{".": ""}).config(), transient},
	} {
		id := newID(t, db)
		_, effects, err := sendMail(t, db, c.smtp, id, aMail)
		got := transient
		if passing := (*handlers.TransientError)(nil); !errors.As(err, &passing) {
			got = reason(err)
		}
		if got != c.want {
			t.Errorf("%s: got %s (%v), want %s", name, got, err, c.want)
		}
		if len(effects.MessagesSent) != 0 {
			t.Errorf("%s: effects tell of a message", name)
		}
		if row := logOf(t, db, id); row.Status != "failed" || row.Error == "" {
			t.Errorf("%s: log %+v", name, row)
		}
		if uncertain := strings.Contains(fmt.Sprint(err),
			"may have been delivered"); uncertain != (name == "hangs up after message") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// QUIT inside a message that was cut off would end the message, and so send half of it.
func TestAfterAnErrorTheConversationIsCutOff(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	server := startMailServer(t, map[string]string{"RCPT": "550 no"})
	if _, _, err := sendMail(t, db, server.config(), anID, aMail); err == nil {
		t.Fatal("no error")
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	for _, verb := range server.verbs {
		if verb == "QUIT" {
			t.Error("the client said QUIT")
		}
	}
}

func TestAMailEndsWithItsContext(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithCancelCause(t.Context())
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		if conn, err := silent.Accept(); err == nil {
			cancel(errors.New("the time is over"))
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}()
	smtp := config{SMTPHost: "127.0.0.1", SMTPPort: silent.Addr().(*net.TCPAddr).Port, SMTPFrom: "office@acme.example",
		SMTPTLS: "none"}
	_, err = (&Comms{db: db, config: smtp}).SendEmail(ctx, &handlers.Call{ID: anID}, aMail)
	if passing := (*handlers.TransientError)(nil); !errors.As(err, &passing) ||
		!strings.Contains(err.Error(), "the time is over") {
		t.Errorf("got %v", err)
	}
	if row := logOf(t, db, anID); row.Status != "failed" {
		t.Errorf("log: %+v", row)
	}
	<-accepted
}

func TestAMailServerWithoutEncryptionGetsNoMailThatWantsIt(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	for _, mode := range []string{"starttls"} {
		server := startMailServer(t, nil)
		smtp := server.config()
		smtp.SMTPTLS = mode
		_, _, err := sendMail(t, db, smtp, newID(t, db), aMail)
		if got := reason(err); got != "smtp_setup" || len(server.received()) != 0 {
			t.Errorf("%q: got %s, %d messages", mode, got, len(server.received()))
		}
	}
}

func TestThePasswordOfTheMailServerIsInNoError(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	server := startMailServer(t, map[string]string{"AUTH": "535 hunter2 is wrong"}, "AUTH PLAIN LOGIN")
	smtp := server.config()
	smtp.SMTPUsername, smtp.SMTPPassword = "office", "hunter2"
	id := newID(t, db)
	_, _, err := sendMail(t, db, smtp, id, aMail)
	if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(logOf(t, db, id).Error, "hunter2") {
		t.Errorf("got %v, log %+v", err, logOf(t, db, id))
	}
	if got := reason(err); got != "smtp_refused" {
		t.Errorf("got %s", got)
	}
}

func TestAMailNeedsItsSettings(t *testing.T) {
	t.Parallel()
	full := config{SMTPHost: "mail.example", SMTPFrom: "office@acme.example"}
	for name, c := range map[string]struct {
		change func(*config)
		want   []string
	}{
		"nothing set":    {func(s *config) { *s = config{} }, []string{"SMTP_HOST", "SMTP_FROM"}},
		"no host":        {func(s *config) { s.SMTPHost = "" }, []string{"SMTP_HOST"}},
		"half a login":   {func(s *config) { s.SMTPUsername = "u" }, []string{"SMTP_PASSWORD"}},
		"the other half": {func(s *config) { s.SMTPPassword = "p" }, []string{"SMTP_USERNAME"}},
	} {
		smtp := full
		c.change(&smtp)
		// Without a database: nothing else is done before.
		_, effects, err := sendMail(t, nil, smtp, anID, aMail)
		missing := (*handlers.NotConfigured)(nil)
		if !errors.As(err, &missing) {
			t.Errorf("%s: got %v, want not_configured", name, err)
			continue
		}
		if diff := cmp.Diff(c.want, missing.RequiredEnv); diff != "" || len(missing.NextSteps) == 0 || missing.Reason == "" {
			t.Errorf("%s: required_env (-want +got):\n%s%+v", name, diff, missing)
		}
		if diff := cmp.Diff(receipts.HandlerEffects{}, effects); diff != "" {
			t.Errorf("%s: effects %s", name, diff)
		}
	}
}

func TestNoHeaderCanBeAddedToAMail(t *testing.T) {
	t.Parallel()
	smtp := config{SMTPHost: "mail.example", SMTPFrom: "office@acme.example"}
	for _, c := range []struct{ to, subject, want string }{
		{"jo@client.example", "Hello\r\nBcc: all@evil.example", "line_break_in_header"},
		{"jo@client.example", "Hello\nX: y", "line_break_in_header"},
		{"jo@client.example", "Hello\rX: y", "line_break_in_header"},
		{"jo@client.example\r\nBcc: all@evil.example", "Hello", "line_break_in_header"},
		{"jo@client.example, all@evil.example", "Hello", "bad_recipient"},
		{"jo", "Hello", "bad_recipient"},
		{"", "Hello", "bad_recipient"},
	} {
		in := aMail
		in.To, in.Subject = c.to, c.subject
		_, _, err := sendMail(t, nil, smtp, anID, in)
		if got := reason(err); got != c.want {
			t.Errorf("%q %q: got %s, want %s", c.to, c.subject, got, c.want)
		}
	}
}

func TestAMessageThatCanNotBeLoggedIsNotSent(t *testing.T) {
	t.Parallel()
	server := startMailServer(t, nil)
	closed := testdb.Pool(t, testdb.NewEmpty(t)) // without tables
	_, effects, err := sendMail(t, closed, server.config(), anID, aMail)
	if err == nil || len(server.received()) != 0 || len(effects.DBWrites) != 0 {
		t.Errorf("got %v, %d messages, effects %+v", err, len(server.received()), effects)
	}
	if passing := (*handlers.TransientError)(nil); errors.As(err, &passing) {
		t.Errorf("a missing table will not pass: %v", err)
	}
}

var anSMS = SendSMS{To: "+15557654321", Message: "We are on our way",
	ContextRef: value.ContextRef{Type: "job", ID: "7"}}

const authToken = "0123456789abcdef"

func sendSMS(t *testing.T, db handlers.DB, baseURL string, callID string) (SMSSent, receipts.HandlerEffects, error) {
	t.Helper()
	call := &handlers.Call{ID: callID, Tool: "comms.send_sms"}
	comms := &Comms{db: db, config: config{
		TwilioAccountSID: "AC42", TwilioAuthToken: authToken, TwilioFrom: "+15551234567", TwilioBaseURL: baseURL,
	}}
	out, err := comms.SendSMS(t.Context(), call, anSMS)
	return out, call.Effects(), err
}

func TestAnSMSIsLoggedAndPostedToTwilio(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	var posts int
	server, host := serve(t, func(w http.ResponseWriter, r *http.Request) {
		posts++
		user, password, _ := r.BasicAuth()
		got := strings.Join([]string{r.Method, r.URL.Path, user, password, r.FormValue("To"), r.FormValue("From"),
			r.FormValue("Body")}, " ")
		if want := "POST /2010-04-01/Accounts/AC42/Messages.json AC42 " + authToken +
			" +15557654321 +15551234567 We are on our way"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"sid": "SM1", "status": "queued"}`)
	})
	out, effects, err := sendSMS(t, db, server.URL, anID)
	if err != nil {
		t.Fatal(err)
	}
	want := logRow{ID: out.SMSID, Channel: "sms", Recipient: "+15557654321", Status: "sent", MessageID: "SM1"}
	if diff := cmp.Diff(want, logOf(t, db, anID)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	wantEffects := receipts.HandlerEffects{
		DBWrites:     []receipts.DBWrite{{Table: "comms_log", Action: handlers.Insert, ID: out.SMSID}},
		MessagesSent: []receipts.MessageSent{{Type: "sms", Recipient: "+15557654321", MessageID: "SM1"}},
		ExternalCalls: []receipts.ExternalCall{{Service: "twilio", StatusCode: http.StatusCreated,
			Endpoint: "http://" + host + "/2010-04-01/Accounts/{AccountSid}/Messages.json"}},
	}
	if diff := cmp.Diff(wantEffects, effects); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
	if again, _, err := sendSMS(t, db, server.URL, anID); err != nil || again != out || posts != 1 {
		t.Errorf("a later attempt: got %v, %v, after %d posts", again, err, posts)
	}
}

func TestAServerThatSwitchesProtocolsHoldsNoSMS(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	url, closed := switching.New(t)
	_, _, err := sendSMS(t, db, url, anID)
	if transient := (*handlers.TransientError)(nil); !errors.As(err, &transient) || transient.NothingSent ||
		!strings.Contains(err.Error(), "may have been delivered") {
		t.Errorf("%v", err)
	}
	<-closed
}

func TestTheIDOfAnSMSShowsNoSecret(t *testing.T) {
	t.Parallel()
	server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"sid": "`+authToken+`"}`)
	})
	_, effects, err := sendSMS(t, tablesOf(t), server.URL, anID)
	if err != nil || len(effects.MessagesSent) != 1 || effects.MessagesSent[0].MessageID != "[secret]" {
		t.Errorf("%+v, %v", effects, err)
	}
}

func TestTheAnswerOfTwilioDecidesWhetherToTryAgain(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	const transient = "transient"
	for name, c := range map[string]struct {
		status int
		body   string
		want   string // "" is sent
	}{
		"taken without a readable answer": {201, `<html>`, ""},
		"taken with an endless answer":    {200, strings.Repeat("x", 1<<20), ""},
		"too many":                        {429, `{"code": 20429, "message": "Too Many Requests"}`, transient},
		"broken":                          {503, `oops`, transient},
		"bad number": {400, `{"code": 21211, "message": "The 'To' number is not valid: ` + authToken +
			`\u0000"}`, "twilio_refused"},
		"bad login": {401, `{"code": 20003, "message": "Authenticate"}`, "twilio_refused"},
		"elsewhere": {307, ``, "twilio_refused"},
	} {
		server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		id := newID(t, db)
		_, effects, err := sendSMS(t, db, server.URL, id)
		got := ""
		if passing := (*handlers.TransientError)(nil); errors.As(err, &passing) {
			got = transient
		} else if err != nil {
			got = reason(err)
		}
		if got != c.want {
			t.Errorf("%s: got %s (%v), want %s", name, got, err, c.want)
		}
		if len(effects.ExternalCalls) != 1 || effects.ExternalCalls[0].StatusCode != c.status ||
			(len(effects.MessagesSent) == 1) != (c.want == "") {
			t.Errorf("%s: effects %+v", name, effects)
		}
		if row := logOf(t, db, id); (row.Status == "sent") != (c.want == "") {
			t.Errorf("%s: log %+v", name, row)
		}
		if failure := (*handlers.Failure)(nil); errors.As(err, &failure) {
			said, _ := json.Marshal(failure)
			if strings.Contains(string(said), authToken) || strings.Contains(string(said), "\\u0000") {
				t.Errorf("%s: %s", name, said)
			}
			if code := failure.Details.(map[string]any)["status_code"]; fmt.Sprint(code) != strconv.Itoa(c.status) {
				t.Errorf("%s: details %v", name, failure.Details)
			}
		}
	}
}

func TestAnSMSWhoseAnswerIsLostMayHaveBeenDelivered(t *testing.T) {
	t.Parallel()
	db := tablesOf(t)
	hangsUp, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		conn, _, _ := w.(http.Hijacker).Hijack()
		_ = conn.Close()
	})
	down, _ := serve(t, nil)
	down.Close()
	for baseURL, uncertain := range map[string]bool{hangsUp.URL: true, down.URL: false} {
		_, effects, err := sendSMS(t, db, baseURL, newID(t, db))
		if passing := (*handlers.TransientError)(nil); !errors.As(err, &passing) || strings.Contains(err.Error(), "AC42") {
			t.Errorf("got %v", err)
		}
		if got := strings.Contains(fmt.Sprint(err), "may have been delivered"); got != uncertain {
			t.Errorf("uncertain %t: %v", uncertain, err)
		}
		if len(effects.ExternalCalls) != 1 || effects.ExternalCalls[0].StatusCode != 0 {
			t.Errorf("effects: %+v", effects.ExternalCalls)
		}
	}
}

func TestAnSMSNeedsItsSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		twilio config
		want   []string
	}{
		"nothing set": {config{}, []string{"TWILIO_ACCOUNT_SID", "TWILIO_AUTH_TOKEN", "TWILIO_FROM"}},
		"no token":    {config{TwilioAccountSID: "AC42", TwilioFrom: "+1"}, []string{"TWILIO_AUTH_TOKEN"}},
	} {
		call := &handlers.Call{ID: anID}
		_, err := (&Comms{config: c.twilio}).SendSMS(t.Context(), call, anSMS)
		missing := (*handlers.NotConfigured)(nil)
		if !errors.As(err, &missing) {
			t.Errorf("%s: got %v, want not_configured", name, err)
			continue
		}
		if diff := cmp.Diff(c.want, missing.RequiredEnv); diff != "" || len(missing.NextSteps) == 0 {
			t.Errorf("%s: required_env (-want +got):\n%s", name, diff)
		}
	}
}

func TestWrongValuesOfTheEnvironment(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, value, want string }{
		{"SMTP_HOST", "smtp://mail", "without scheme"},
		{"SMTP_PORT", "65536", "from 1 to 65535"},
		{"SMTP_PORT", "0", "from 1 to 65535"},
		{"SMTP_PORT", "many", `is "many"; it may be a whole number`},
		{"SMTP_FROM", "gem", "a mail address"},
		{"SMTP_TLS", "ssl", "starttls, tls or none"},
		{"TWILIO_ACCOUNT_SID", "AC/../1", "letters and digits"},
		{"TWILIO_BASE_URL", "api.twilio.com", "a URL"},
		{"TWILIO_BASE_URL", "https://u:hunter2x@api.twilio.com", "without user"},
	} {
		err := binding.Configure(func(name string) string { return map[string]string{c.name: c.value}[name] }, Domain())
		if err == nil || !strings.HasPrefix(err.Error(), c.name+" is ") || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s=%s: %v", c.name, c.value, err)
		}
	}
}

func TestTheEnvironmentIsRead(t *testing.T) {
	t.Parallel()
	read := func(set map[string]string) config {
		t.Helper()
		d := Domain()
		if err := binding.Configure(func(name string) string { return set[name] }, d); err != nil {
			t.Fatal(err)
		}
		return *d.Config.(*config)
	}
	want := config{SMTPPort: 587, SMTPTLS: "starttls", TwilioBaseURL: "https://api.twilio.com"}
	if diff := cmp.Diff(want, read(nil)); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	want = config{
		SMTPHost: "mail.example.com", SMTPPort: 465, SMTPUsername: "u", SMTPPassword: "p", SMTPFrom: "GEM <gem@example.com>",
		SMTPTLS:          "tls",
		TwilioAccountSID: "AC1", TwilioAuthToken: "t", TwilioFrom: "+15550100", TwilioBaseURL: "http://127.0.0.1:8080/",
	}
	got := read(map[string]string{
		"SMTP_HOST": " mail.example.com ", "SMTP_PORT": "465", "SMTP_USERNAME": "u", "SMTP_PASSWORD": "p",
		"SMTP_FROM": "GEM <gem@example.com>",
		"SMTP_TLS":  "TLS", "TWILIO_ACCOUNT_SID": "AC1", "TWILIO_AUTH_TOKEN": "t", "TWILIO_FROM": "+15550100",
		"TWILIO_BASE_URL": "http://127.0.0.1:8080/",
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.SMTPPassword.Reveal() != "p" || strings.Contains(fmt.Sprintf("%+v", got), "SMTPPassword:p") {
		t.Errorf("the password: %+v", got)
	}
}

func TestAMessageIsLoggedInGEMsTableWhateverTheSearchPath(t *testing.T) {
	t.Parallel()
	url := testdb.New(t, migrations.Sources(Domain())...)
	id := newID(t, testdb.Pool(t, url))
	testdb.AddStranger(t, url)
	server := startMailServer(t, nil)
	if _, _, err := sendMail(t, testdb.Pool(t, url), server.config(), id, aMail); err != nil {
		t.Error(err)
	}
	refuses := startMailServer(t, map[string]string{"DATA": "554 no"})
	if _, _, err := sendMail(t, testdb.Pool(t, url), refuses.config(), newID(t, testdb.Pool(t, url)),
		aMail); reason(err) != "smtp_refused" {
		t.Error(err)
	}
}
