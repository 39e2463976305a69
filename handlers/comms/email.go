package comms

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"net/textproto"
	"strings"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/table"
	"github.com/gemworker/gem/handlers/value"
	"github.com/wneessen/go-mail"
)

const (
	// smtpTimeout limits the connection, and each step of the conversation.
	smtpTimeout = 20 * time.Second
	// smtpMaxReply limits the replies of one conversation, in bytes.
	smtpMaxReply = 1 << 20
)

// SendEmail is a mail to one recipient, as plain text.
type SendEmail struct {
	To         string          `json:"to"`
	Subject    string          `json:"subject"`
	Body       string          `json:"body"`
	ContextRef json.RawMessage `json:"context_ref"` // the subject of the mail in the log
	TemplateID string          `json:"template_id"` // kept in the log; the body is sent unchanged
}

// EmailSent names the mail's row in comms_log.
type EmailSent struct {
	EmailID string `json:"email_id"`
}

// SendEmail is comms.send_email. Success means that the mail server accepted the message. Its Message-ID is made from
// the call's id, the same in every attempt, so a receiver that gets it twice can drop one.
func (c *Comms) SendEmail(ctx context.Context, call *handlers.Call, in SendEmail) (EmailSent, error) {
	from, err := c.config.sender()
	if err != nil {
		return EmailSent{}, err
	}
	for _, header := range []struct{ field, value string }{{"to", in.To}, {"subject", in.Subject}} {
		if strings.ContainsAny(header.value, "\r\n") {
			return EmailSent{}, handlers.Fail("line_break_in_header",
				header.field+" must be a single line: a line break could add headers to the mail.")
		}
	}
	to, err := netmail.ParseAddress(in.To)
	if err != nil {
		return EmailSent{}, handlers.Fail("bad_recipient", "to is not an e-mail address such as jo@example.com.")
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
		channel: "email", recipient: to.Address, subject: in.Subject, body: in.Body,
		contextRef: table.NullJSON(in.ContextRef), templateID: in.TemplateID,
	}, func() (string, error) { return messageID, c.config.deliver(ctx, msg) })
	return EmailSent{EmailID: id}, err
}

// sender returns the sender's address, or the error of a missing setting.
func (c *config) sender() (*netmail.Address, error) {
	if err := requires("The mail server", "If the mail server wants a login, set SMTP_USERNAME and SMTP_PASSWORD too.",
		setting{"SMTP_HOST", c.SMTPHost != ""},
		setting{"SMTP_FROM", c.SMTPFrom != ""},
		setting{"SMTP_USERNAME", c.SMTPUsername != "" || c.SMTPPassword == ""},
		setting{"SMTP_PASSWORD", c.SMTPPassword != "" || c.SMTPUsername == ""},
	); err != nil {
		return nil, err
	}
	return netmail.ParseAddress(c.SMTPFrom)
}

// deliver hands the message to the mail server. A nil error means that the server accepted it.
func (c *config) deliver(ctx context.Context, msg *mail.Msg) error {
	options := []mail.Option{
		mail.WithTimeout(smtpTimeout), mail.WithoutNoop(), mail.WithoutRset(),
		mail.WithTLSPolicy(map[string]mail.TLSPolicy{"starttls": mail.TLSMandatory, "none": mail.NoTLS,
			"tls": mail.TLSOpportunistic}[c.SMTPTLS]), // with tls the connection is encrypted already
		mail.WithPort(c.SMTPPort),
	}
	if c.SMTPUsername != "" {
		options = append(options, mail.WithUsername(c.SMTPUsername.Reveal()), mail.WithPassword(c.SMTPPassword.Reveal()),
			// The library refuses PLAIN and LOGIN on a connection that is neither encrypted nor local.
			mail.WithOpportunisticSMTPAuth(mail.SMTPAuthSCRAMSHA256, mail.SMTPAuthSCRAMSHA1, mail.SMTPAuthPlain,
				mail.SMTPAuthLogin,
				mail.SMTPAuthCramMD5))
	}
	// After an error, close the connection without QUIT: inside a message that was cut off, QUIT would end and send it.
	hangUp := func() {}
	defer func() { hangUp() }()
	options = append(options, mail.WithDialContextFunc(
		func(dial context.Context, network, address string) (net.Conn, error) {
			raw, err := (&net.Dialer{}).DialContext(dial, network, address)
			if err != nil {
				return nil, err
			}
			// The conversation takes no context: only closing the connection ends it.
			stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
			hangUp = func() { stop(); _ = raw.Close() }
			conn := &boundedConn{Conn: raw, left: smtpMaxReply}
			if c.SMTPTLS != "tls" {
				return conn, nil
			}
			secure := tls.Client(conn, &tls.Config{ServerName: c.SMTPHost, MinVersion: tls.VersionTLS12})
			return secure, secure.HandshakeContext(dial)
		}))
	client, err := mail.NewClient(c.SMTPHost, options...)
	if err != nil {
		return handlers.Fail("smtp_setup", "The mail client cannot be set up: "+
			value.OneLine(err.Error(), c.SMTPPassword.Reveal()))
	}

	session, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return c.unconnected(ctx, err)
	}
	if err := client.SendWithSMTPClient(session, msg); err != nil && !msg.IsDelivered() {
		return c.explain(ctx, err)
	}
	_ = session.Text.PrintfLine("QUIT") // a courtesy, since the message is out
	return nil
}

// unconnected returns the error of a conversation that ended before the message was sent.
func (c *config) unconnected(ctx context.Context, err error) error {
	explained := c.explain(ctx, err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	if _, passes := errors.AsType[*handlers.TransientError](explained); passes || untrusted {
		return handlers.NothingSent(explained, 0)
	}
	return explained
}

// explain marks an error of the conversation as transient if another attempt makes sense: after a server's 4xx and a
// broken connection, but not after a 5xx, or if the two sides cannot agree on a connection.
func (c *config) explain(ctx context.Context, err error) error {
	reply := value.OneLine(err.Error(), c.SMTPPassword.Reveal())
	code, passes := 0, ctx.Err() != nil || handlers.IsNetworkError(err)
	if sending := (*mail.SendError)(nil); errors.As(err, &sending) {
		code = sending.ErrorCode()
		// A missing code means that no reply arrived: the connection broke. The library does not return the error itself.
		passes = passes || code == 0 && sending.Reason != mail.ErrGetSender && sending.Reason != mail.ErrGetRcpts
		if sending.Reason == mail.ErrSMTPDataClose && code == 0 {
			return handlers.Transient(fmt.Errorf("the connection to the mail server broke after the message: it may have been "+
				"delivered (%s)", reply))
		}
	} else if refused := (*textproto.Error)(nil); errors.As(err, &refused) {
		code = refused.Code
	}
	switch {
	case code >= 500:
		return &handlers.Failure{
			Message: "The mail server refused the message: " + reply,
			Details: map[string]any{"reason": "smtp_refused", "smtp_code": code},
		}
	case code >= 400:
		return handlers.Transient(fmt.Errorf("the mail server cannot take the message now: %s", reply))
	case ctx.Err() != nil:
		return handlers.Transient(fmt.Errorf("the mail server took too long: %w", context.Cause(ctx)))
	case passes:
		return handlers.Transient(fmt.Errorf("the mail server could not be reached: %s", reply))
	}
	return handlers.Fail("smtp_setup", "The mail server and GEM could not agree on a connection: "+reply+
		". Check SMTP_TLS, SMTP_PORT and the login.")
}

// boundedConn reads a limited number of bytes, because the replies of a mail server have no limit.
type boundedConn struct {
	net.Conn
	left int
}

func (c *boundedConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errors.New("the replies of the mail server are too long")
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}
