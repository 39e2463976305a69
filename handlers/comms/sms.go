package comms

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gemworker/gem/handlers"
	"github.com/gemworker/gem/handlers/value"
	"github.com/gemworker/gem/internal/outbound"
)

// twilioMaxAnswer limits an answer, in bytes.
const twilioMaxAnswer = 64 << 10

// SendSMS is a text message to one phone.
type SendSMS struct {
	To         string           `json:"to"`
	Message    string           `json:"message"`
	ContextRef value.ContextRef `json:"context_ref"` // the subject of the message in the log
	TemplateID string           `json:"template_id"` // kept in the log; the message is sent unchanged
}

// SMSSent names the message's row in comms_log.
type SMSSent struct {
	SMSID string `json:"sms_id"`
}

// SendSMS is comms.send_sms. Success means that Twilio accepted the message.
func (c *Comms) SendSMS(ctx context.Context, call *handlers.Call, in SendSMS) (SMSSent, error) {
	endpoint, err := c.config.endpoint()
	if err != nil {
		return SMSSent{}, err
	}
	id, err := c.send(ctx, call, message{
		channel: "sms", recipient: in.To, body: in.Message, contextRef: in.ContextRef, templateID: in.TemplateID,
	}, func() (string, error) { return c.config.post(ctx, call, endpoint, in.To, in.Message) })
	return SMSSent{SMSID: id}, err
}

// endpoint returns the URL to which messages are posted, or the error of a missing setting.
func (c *config) endpoint() (*url.URL, error) {
	if err := requires("Twilio", "Take the account SID, the auth token and a sending number from the Twilio console.",
		setting{"TWILIO_ACCOUNT_SID", c.TwilioAccountSID != ""},
		setting{"TWILIO_AUTH_TOKEN", c.TwilioAuthToken != ""},
		setting{"TWILIO_FROM", c.TwilioFrom != ""},
	); err != nil {
		return nil, err
	}
	base, err := url.Parse(c.TwilioBaseURL)
	if err != nil {
		return nil, err
	}
	return base.JoinPath("2010-04-01", "Accounts", url.PathEscape(c.TwilioAccountSID), "Messages.json"), nil
}

// post gives the message to Twilio and returns Twilio's id of it. A nil error means that Twilio accepted it.
func (c *config) post(ctx context.Context, call *handlers.Call, endpoint *url.URL, to, body string) (string, error) {
	var began, wrote atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() { began.Store(true) },
		WroteRequest: func(info httptrace.WroteRequestInfo) { wrote.Store(info.Err == nil) },
	})
	form := url.Values{"To": {to}, "From": {c.TwilioFrom}, "Body": {body}}
	req, err := http.NewRequestWithContext(traced, http.MethodPost, endpoint.String(), strings.NewReader(form.Encode()))
	if err != nil {
		return "", errors.New("the request to Twilio cannot be written: check TWILIO_BASE_URL")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.SetBasicAuth(c.TwilioAccountSID, c.TwilioAuthToken.Reveal())

	// The account's id is half of the credentials, so the receipt does not show it.
	shown := endpoint.Scheme + "://" + endpoint.Host + "/2010-04-01/Accounts/{AccountSid}/Messages.json"
	resp, err := twilioClient.Do(req)
	if err != nil {
		call.Called("twilio", shown, 0)
		// The outer error repeats the URL, with the account in it.
		if outer := (*url.Error)(nil); errors.As(err, &outer) {
			err = outer.Err
		}
		if wrote.Load() {
			return "", handlers.Transient(fmt.Errorf("the connection to Twilio broke after the message: it may have been "+
				"delivered (%w)", err))
		}
		if began.Load() {
			return "", handlers.Transient(fmt.Errorf("the connection to Twilio broke: %w", err))
		}
		return "", handlers.NothingSent(fmt.Errorf("could not reach Twilio, and nothing was sent: %w", err), 0)
	}
	defer func() { _ = resp.Body.Close() }()
	call.Called("twilio", shown, resp.StatusCode)

	var answer struct {
		SID     string `json:"sid"`
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	// The status code shows whether the message was accepted, even if the answer cannot be read.
	if data, err := io.ReadAll(io.LimitReader(resp.Body, twilioMaxAnswer)); err == nil {
		_ = json.Unmarshal(data, &answer)
	}
	said := func(text string) string { return value.OneLine(text, c.TwilioAuthToken.Reveal(), c.TwilioAccountSID) }
	reason := cmp.Or(said(answer.Message), "no reason given")
	switch {
	case resp.StatusCode < 200:
		return "", handlers.Transient(fmt.Errorf("what answers for Twilio switched to another protocol (%d) after the "+
			"message: it may have been delivered", resp.StatusCode))
	case resp.StatusCode < 300:
		return said(answer.SID), nil
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500:
		return "", handlers.Transient(fmt.Errorf("the message was not accepted by Twilio, which answered %d: %s",
			resp.StatusCode, reason))
	}
	return "", &handlers.Failure{
		Message: fmt.Sprintf("Twilio refused the message with status %d: %s", resp.StatusCode, reason),
		Details: map[string]any{"reason": "twilio_refused", "status_code": resp.StatusCode, "twilio_code": answer.Code,
			"twilio_message": reason},
	}
}

// twilioClient follows no redirects, which could send a message and its credentials to another host. Each message has
// its own connection, so a connection cannot have broken earlier.
var twilioClient = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport: outbound.Once(&http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: twilioMaxAnswer,
		DisableKeepAlives:      true,
	}),
}
