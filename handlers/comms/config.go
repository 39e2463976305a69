package comms

import (
	"net/mail"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/gemworker/gem/handlers"
)

// config has the settings of the mail server and of Twilio.
type config struct {
	SMTPHost     string          `envconfig:"SMTP_HOST" may:"the name or address of a host, without scheme and port" desc:"The mail server of comms.send_email."`
	SMTPPort     int             `envconfig:"SMTP_PORT" default:"587" may:"a whole number from 1 to 65535" desc:"Its port."`
	SMTPUsername handlers.Secret `envconfig:"SMTP_USERNAME" may:"the user that the mail server knows" desc:"Its user; with some services a token."`
	SMTPPassword handlers.Secret `envconfig:"SMTP_PASSWORD" may:"the password of SMTP_USERNAME" desc:"Its password."`
	SMTPFrom     string          `envconfig:"SMTP_FROM" may:"a mail address such as gem@example.com or GEM <gem@example.com>" desc:"The sender of mails."`
	SMTPTLS      string          `envconfig:"SMTP_TLS" default:"starttls" may:"starttls, tls or none" desc:"starttls (port 587), tls from the first byte (port 465), or none."`

	TwilioAccountSID string          `envconfig:"TWILIO_ACCOUNT_SID" may:"the account's SID, letters and digits" desc:"The Twilio account of comms.send_sms."`
	TwilioAuthToken  handlers.Secret `envconfig:"TWILIO_AUTH_TOKEN" may:"the account's token" desc:"Its token."`
	TwilioFrom       string          `envconfig:"TWILIO_FROM" may:"a number such as +15550100, or a sender's name" desc:"The sender of messages."`
	TwilioBaseURL    string          `envconfig:"TWILIO_BASE_URL" default:"https://api.twilio.com" may:"a URL such as https://api.twilio.com, without user, query and fragment" desc:"Twilio's API; another in tests."`
}

var sid = regexp.MustCompile(`^[A-Za-z0-9_-]*$`)

// Wrong returns the variables with unusable values.
func (c *config) Wrong() map[string]string {
	c.SMTPTLS = strings.ToLower(c.SMTPTLS)
	_, noAddress := netip.ParseAddr(c.SMTPHost)
	_, noSender := mail.ParseAddress(c.SMTPFrom)
	base, noURL := url.Parse(c.TwilioBaseURL)
	wrong := map[string]string{}
	for name, right := range map[string]bool{
		"SMTP_HOST":          noAddress == nil || !strings.ContainsAny(c.SMTPHost, ":/@[] "),
		"SMTP_PORT":          c.SMTPPort >= 1 && c.SMTPPort <= 65535,
		"SMTP_FROM":          c.SMTPFrom == "" || noSender == nil,
		"SMTP_TLS":           slices.Contains([]string{"starttls", "tls", "none"}, c.SMTPTLS),
		"TWILIO_ACCOUNT_SID": sid.MatchString(c.TwilioAccountSID),
		"TWILIO_FROM":        !strings.ContainsFunc(c.TwilioFrom, func(r rune) bool { return !unicode.IsPrint(r) }),
		"TWILIO_BASE_URL": noURL == nil && (base.Scheme == "https" || base.Scheme == "http") && base.Hostname() != "" &&
			base.User == nil && base.RawQuery == "" && base.Fragment == "",
	} {
		if !right {
			wrong[name] = ""
		}
	}
	return wrong
}

// setting is a variable, and whether it is set.
type setting struct {
	variable string
	set      bool
}

// requires returns the error of a tool whose service lacks one of these variables, or nil. step is the step before
// setting them.
func requires(service, step string, required ...setting) error {
	var names []string
	for _, r := range required {
		if !r.set {
			names = append(names, r.variable)
		}
	}
	if len(names) == 0 {
		return nil
	}
	list := strings.Join(names, ", ")
	return &handlers.NotConfigured{
		Reason:      service + " is not set up. Missing: " + list + ".",
		RequiredEnv: names,
		NextSteps: []string{step, "Set " + list + " in the worker's environment, restart the worker and make the call " +
			"again."},
	}
}
