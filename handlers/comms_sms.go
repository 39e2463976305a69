package handlers

import (
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
)

// twilioMaxAnswer is how much of an answer is read, in bytes.
const twilioMaxAnswer = 64 << 10

// SendSMS is a text message to one phone.
type SendSMS struct {
	To         string     `json:"to"`
	Message    string     `json:"message"`
	ContextRef ContextRef `json:"context_ref"` // what the message is about, kept in the log
	TemplateID string     `json:"template_id"` // kept in the log; the message is sent as it is given
}

// SMSSent names the message's row in comms_log.
type SMSSent struct {
	SMSID string `json:"sms_id"`
}

// SendSMS is comms.send_sms. Success means that Twilio took the message.
func (c Comms) SendSMS(ctx context.Context, call *Call, in SendSMS) (SMSSent, error) {
	endpoint, err := c.twilio.endpoint()
	if err != nil {
		return SMSSent{}, err
	}
	contextRef, err := json.Marshal(in.ContextRef)
	if err != nil {
		return SMSSent{}, fmt.Errorf("write context_ref: %w", err)
	}
	id, err := c.send(ctx, call, message{
		channel: "sms", recipient: in.To, body: in.Message, contextRef: contextRef, templateID: in.TemplateID,
	}, func() (string, error) { return c.twilio.deliver(ctx, call, endpoint, in.To, in.Message) })
	if err != nil {
		return SMSSent{}, err
	}
	return SMSSent{SMSID: id}, nil
}

// endpoint checks the configuration and returns where messages are posted to.
func (t Twilio) endpoint() (*url.URL, error) {
	var missing []string
	for _, v := range []struct{ name, value string }{
		{"TWILIO_ACCOUNT_SID", t.AccountSID}, {"TWILIO_AUTH_TOKEN", t.AuthToken}, {"TWILIO_FROM", t.From},
	} {
		if v.value == "" {
			missing = append(missing, v.name)
		}
	}
	if len(missing) > 0 {
		return nil, &NotConfigured{
			Reason:      "Twilio is not set up. Missing: " + strings.Join(missing, ", ") + ".",
			RequiredEnv: missing,
			NextSteps: []string{
				"Take the account SID, the auth token and a sending number from the Twilio console.",
				"Set " + strings.Join(missing, ", ") + " in the worker's environment, restart the worker and make the call again.",
			},
		}
	}
	base := t.BaseURL
	if base == "" {
		base = "https://api.twilio.com"
	}
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, wrongSetting("TWILIO_BASE_URL", "must be a URL such as https://api.twilio.com")
	}
	return u.JoinPath("2010-04-01", "Accounts", url.PathEscape(t.AccountSID), "Messages.json"), nil
}

// deliver posts the message and returns Twilio's id of it. A nil error means that Twilio took it.
func (t Twilio) deliver(ctx context.Context, call *Call, endpoint *url.URL, to, body string) (string, error) {
	var wrote atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(info httptrace.WroteRequestInfo) { wrote.Store(info.Err == nil) },
	})
	form := url.Values{"To": {to}, "From": {t.From}, "Body": {body}}
	req, err := http.NewRequestWithContext(traced, http.MethodPost, endpoint.String(), strings.NewReader(form.Encode()))
	if err != nil {
		return "", errors.New("the request to Twilio can not be written: check TWILIO_BASE_URL")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.SetBasicAuth(t.AccountSID, t.AuthToken)

	// The account's id is half of the credentials: the receipt shows where it stands, not what it is.
	shown := endpoint.Scheme + "://" + endpoint.Host + "/2010-04-01/Accounts/{AccountSid}/Messages.json"
	resp, err := twilioClient.Do(req)
	if err != nil {
		call.Called("twilio", shown, 0)
		// The outer error repeats the URL, with the account in it.
		if outer := (*url.Error)(nil); errors.As(err, &outer) {
			err = outer.Err
		}
		if wrote.Load() {
			return "", Transient(fmt.Errorf("the connection to Twilio broke after the message was sent: it may have been delivered (%w)", err))
		}
		return "", Transient(fmt.Errorf("could not reach Twilio: %w", err))
	}
	defer func() { _ = resp.Body.Close() }()
	call.Called("twilio", shown, resp.StatusCode)

	var answer struct {
		SID     string `json:"sid"`
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	// An answer that can not be read leaves its fields empty; the status code says whether the message was taken.
	if data, err := io.ReadAll(io.LimitReader(resp.Body, twilioMaxAnswer)); err == nil {
		_ = json.Unmarshal(data, &answer)
	}
	said := foreign(answer.Message, t.AuthToken, t.AccountSID)
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		return foreign(answer.SID), nil
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500:
		return "", Transient(fmt.Errorf("the message was not taken by Twilio, which answered %d: %s", resp.StatusCode, orElse(said, "no reason given")))
	}
	return "", &Failure{
		Message: fmt.Sprintf("Twilio refused the message with status %d: %s", resp.StatusCode, orElse(said, "no reason given")),
		Details: map[string]any{"reason": "twilio_refused", "status_code": resp.StatusCode, "twilio_code": answer.Code, "twilio_message": said},
	}
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// twilioClient follows no redirect, which could carry a message and its credentials elsewhere. A connection serves one
// message, so that a broken one is never a reused one.
var twilioClient = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport: &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: twilioMaxAnswer,
		DisableKeepAlives:      true,
	},
}
