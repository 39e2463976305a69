package handlers

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	netmail "net/mail"
	"net/textproto"
	"strings"
	"time"

	"github.com/wneessen/go-mail"
)

const (
	// smtpTimeout is how long the mail server may take for the connection and for each step of the conversation.
	smtpTimeout = 20 * time.Second
	// smtpMaxReply is how much a mail server may say in one conversation, in bytes.
	smtpMaxReply = 1 << 20
)

// SendEmail is a mail to one recipient, as plain text.
type SendEmail struct {
	To         string          `json:"to"`
	Subject    string          `json:"subject"`
	Body       string          `json:"body"`
	ContextRef json.RawMessage `json:"context_ref"` // what the mail is about, kept in the log
	TemplateID string          `json:"template_id"` // kept in the log; the body is sent as it is given
}

// EmailSent names the mail's row in comms_log.
type EmailSent struct {
	EmailID string `json:"email_id"`
}

// SendEmail is comms.send_email. Success means that the mail server took the message. Its Message-ID is made from the
// call's id, the same in every attempt, so that a receiver that gets it twice can drop one.
func (c Comms) SendEmail(ctx context.Context, call *Call, in SendEmail) (EmailSent, error) {
	from, err := c.smtp.sender()
	if err != nil {
		return EmailSent{}, err
	}
	for _, header := range []struct{ field, value string }{{"to", in.To}, {"subject", in.Subject}} {
		if strings.ContainsAny(header.value, "\r\n") {
			return EmailSent{}, &Failure{
				Message: fmt.Sprintf("%s must be a single line: a line break in it could add headers to the mail.", header.field),
				Details: map[string]string{"reason": "line_break_in_header", "field": header.field},
			}
		}
	}
	to, err := netmail.ParseAddress(in.To)
	if err != nil {
		return EmailSent{}, &Failure{
			Message: "to is no e-mail address such as jo@example.com.",
			Details: map[string]string{"reason": "bad_recipient"},
		}
	}

	messageID := call.ID + from.Address[strings.LastIndexByte(from.Address, '@'):]
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent())
	msg.FromMailAddress(from)
	msg.ToMailAddress(to)
	msg.Subject(in.Subject)
	msg.SetDate()
	msg.SetMessageIDWithValue(messageID)
	msg.SetBodyString(mail.TypeTextPlain, in.Body)

	id, err := c.send(ctx, call, message{
		channel: "email", recipient: to.Address, subject: in.Subject, body: in.Body, contextRef: in.ContextRef, templateID: in.TemplateID,
	}, func() (string, error) { return messageID, c.smtp.deliver(ctx, msg) })
	if err != nil {
		return EmailSent{}, err
	}
	return EmailSent{EmailID: id}, nil
}

// sender checks the configuration and returns the address to send from.
func (s SMTP) sender() (*netmail.Address, error) {
	var missing []string
	for _, v := range []struct {
		name string
		gone bool
	}{
		{"SMTP_HOST", s.Host == ""},
		{"SMTP_FROM", s.From == ""},
		{"SMTP_USERNAME", s.Username == "" && s.Password != ""},
		{"SMTP_PASSWORD", s.Password == "" && s.Username != ""},
	} {
		if v.gone {
			missing = append(missing, v.name)
		}
	}
	if len(missing) > 0 {
		return nil, &NotConfigured{
			Reason:      "No mail server is set up. Missing: " + strings.Join(missing, ", ") + ".",
			RequiredEnv: missing,
			NextSteps: []string{
				"Set " + strings.Join(missing, ", ") + " in the worker's environment; SMTP_USERNAME and SMTP_PASSWORD too, if the mail server wants a login.",
				"Restart the worker and make the call again.",
			},
		}
	}
	from, err := netmail.ParseAddress(s.From)
	if err != nil {
		return nil, wrongSetting("SMTP_FROM", "must be an address such as office@example.com or Acme Roofing <office@example.com>")
	}
	if s.TLS != "" && s.TLS != "starttls" && s.TLS != "tls" && s.TLS != "none" {
		return nil, wrongSetting("SMTP_TLS", "must be starttls, tls or none")
	}
	if s.Port < 0 || s.Port > 65535 {
		return nil, wrongSetting("SMTP_PORT", "must be a port from 1 to 65535")
	}
	return from, nil
}

// wrongSetting is for a variable that is set to what can not work. Its value may be a secret and is not repeated.
func wrongSetting(name, must string) error {
	return &NotConfigured{
		Reason:      fmt.Sprintf("%s %s.", name, must),
		RequiredEnv: []string{name},
		NextSteps:   []string{fmt.Sprintf("Correct %s in the worker's environment, restart the worker and make the call again.", name)},
	}
}

// deliver hands the message to the mail server. nil means that the server took it.
func (s SMTP) deliver(ctx context.Context, msg *mail.Msg) error {
	options := []mail.Option{
		mail.WithTimeout(smtpTimeout), mail.WithoutNoop(), mail.WithoutRset(),
		mail.WithTLSPolicy(map[string]mail.TLSPolicy{"": mail.TLSMandatory, "starttls": mail.TLSMandatory,
			// From the first byte: there is nothing left to start, only to notice.
			"tls": mail.TLSOpportunistic, "none": mail.NoTLS}[s.TLS]),
		mail.WithPort(s.port()),
	}
	if s.Username != "" {
		options = append(options, mail.WithUsername(s.Username), mail.WithPassword(s.Password),
			// PLAIN and LOGIN are refused by the library on a connection that is neither encrypted nor local.
			mail.WithOpportunisticSMTPAuth(mail.SMTPAuthSCRAMSHA256, mail.SMTPAuthSCRAMSHA1, mail.SMTPAuthPlain, mail.SMTPAuthLogin, mail.SMTPAuthCramMD5))
	}
	// Never QUIT after an error, and so close the connection here: inside a message that was cut off, QUIT would end the
	// message, and so send it.
	hangUp := func() {}
	defer func() { hangUp() }()
	options = append(options, mail.WithDialContextFunc(func(dial context.Context, network, address string) (net.Conn, error) {
		raw, err := (&net.Dialer{}).DialContext(dial, network, address)
		if err != nil {
			return nil, err
		}
		// The conversation itself knows no context: closing the connection is what ends it.
		stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
		hangUp = func() { stop(); _ = raw.Close() }
		conn := &boundedConn{Conn: raw, left: smtpMaxReply}
		if s.TLS != "tls" {
			return conn, nil
		}
		secure := tls.Client(conn, &tls.Config{ServerName: s.Host, MinVersion: tls.VersionTLS12})
		return secure, secure.HandshakeContext(dial)
	}))
	client, err := mail.NewClient(s.Host, options...)
	if err != nil {
		return &Failure{Message: "The mail client can not be set up: " + foreign(err.Error(), s.Password), Details: map[string]string{"reason": "smtp_setup"}}
	}

	session, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return s.explain(ctx, err)
	}
	if err := client.SendWithSMTPClient(session, msg); err != nil && !msg.IsDelivered() {
		return s.explain(ctx, err)
	}
	_ = session.Text.PrintfLine("QUIT") // a courtesy: the message is out, and its log is waiting
	return nil
}

func (s SMTP) port() int {
	switch {
	case s.Port != 0:
		return s.Port
	case s.TLS == "tls":
		return 465
	case s.TLS == "none":
		return 25
	}
	return 587
}

// explain turns an error of the conversation into one that says whether another attempt makes sense. A server's 4xx and
// a broken connection may pass; its 5xx, and what the two sides can not agree on, will not.
func (s SMTP) explain(ctx context.Context, err error) error {
	reply := foreign(err.Error(), s.Password)
	code, passes := 0, ctx.Err() != nil || isNetworkError(err)
	if sending := (*mail.SendError)(nil); errors.As(err, &sending) {
		code = sending.ErrorCode()
		// Without a code it was no reply of the server: the connection broke. The library does not hand out the error itself.
		passes = passes || code == 0 && sending.Reason != mail.ErrGetSender && sending.Reason != mail.ErrGetRcpts
		if sending.Reason == mail.ErrSMTPDataClose && code == 0 {
			return Transient(fmt.Errorf("the connection to the mail server broke after the whole message was sent: it may have been delivered (%s)", reply))
		}
	} else if refused := (*textproto.Error)(nil); errors.As(err, &refused) {
		code = refused.Code
	}
	switch {
	case code >= 500:
		return &Failure{
			Message: "The mail server refused the message: " + reply,
			Details: map[string]any{"reason": "smtp_refused", "smtp_code": code},
		}
	case code >= 400:
		return Transient(fmt.Errorf("the mail server can not take the message now: %s", reply))
	case ctx.Err() != nil:
		return Transient(fmt.Errorf("the mail server took too long: %w", context.Cause(ctx)))
	case passes:
		return Transient(fmt.Errorf("the mail server could not be reached: %s", reply))
	}
	return &Failure{
		Message: "The mail server and GEM could not agree on a connection: " + reply + ". Check SMTP_TLS, SMTP_PORT and the login.",
		Details: map[string]string{"reason": "smtp_setup"},
	}
}

func isNetworkError(err error) bool {
	if wrong := (*tls.CertificateVerificationError)(nil); errors.As(err, &wrong) {
		return false
	}
	netErr := net.Error(nil)
	return errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// boundedConn reads at most so many bytes, since the replies of a mail server have no end of their own.
type boundedConn struct {
	net.Conn
	left int
}

func (c *boundedConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errors.New("the mail server said too much")
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}
