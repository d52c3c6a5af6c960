// An agent: dials Agent-Reach, streams its answers, keeps each outcome until the server has it for certain, and comes back
// by itself.
//
//	go run ./agent
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log"
	mathrand "math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	pb "example.com/agentreach-go/agentreach/v1"
)

const (
	agentID     = "hello-go"
	link        = 1 // our number on the stream
	resendAfter = 5 * time.Second
	longestWait = 5 * time.Second
)

// name is what all attempts of a task have in common.
type name struct{ tenant, taskID string }

// attempt is one that runs, or whose outcome the server does not have yet.
type attempt struct {
	key     *pb.AttemptKey
	cancel  context.CancelFunc
	deltas  []*pb.AttemptDelta
	outcome *pb.AttemptResult // nil while it runs
}

type agent struct {
	bootID string

	mu       sync.Mutex
	attempts map[name]*attempt
	stream   grpc.BidiStreamingClient[pb.AttachRequest, pb.AttachResponse] // nil while there is none
	seen     uint64                                                        // number of the last frame that came
	hellos   uint64                                                        // how many we have said
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	conn, err := grpc.NewClient(
		cmp.Or(os.Getenv("AGENT_REACH_ADDR"), "127.0.0.1:8900"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(9<<20)),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	a := &agent{bootID: rand.Text(), attempts: map[name]*attempt{}}
	go a.beat(ctx)
	for ctx.Err() == nil {
		err := a.attach(ctx, pb.NewAgentServiceClient(conn))
		wait := time.Duration(mathrand.Int64N(int64(longestWait))) // full jitter: all who lost a server come back spread
		if ctx.Err() == nil {
			log.Printf("the stream ended (%v); again in %v", err, wait.Round(time.Millisecond))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// attach holds one stream, from the hello to its end.
func (a *agent) attach(ctx context.Context, client pb.AgentServiceClient) error {
	streamCtx, cancel := context.WithCancel(context.Background()) // it outlives ctx, for the last words
	defer cancel()
	stream, err := client.Attach(streamCtx)
	if err != nil {
		return err
	}
	if err := stream.Send(&pb.AttachRequest{Opening: &pb.StreamOpening{ProtocolVersion: "1"}}); err != nil {
		return err
	}
	a.mu.Lock()
	a.stream, a.seen = stream, 0
	a.hello()
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.stream = nil
		a.mu.Unlock()
	}()
	defer context.AfterFunc(ctx, a.goodbye)()
	for {
		frame, err := stream.Recv()
		if err != nil {
			return err
		}
		a.received(frame)
		if frame.Reopen {
			return nil
		}
	}
}

// hello says what we are and names all that runs: what it does not name is not running. Then it tells the outcomes again that
// the server does not have. a.mu is held.
func (a *agent) hello() {
	registration := &pb.Registration{
		AgentId: agentID, InstanceId: fmt.Sprintf("%s@%d", agentID, os.Getpid()), BootId: a.bootID,
		MaxConcurrency: ptr(uint32(8)), Ready: ptr(true), Features: []string{"ping"},
	}
	a.hellos++
	hello := &pb.Hello{Link: link, Number: a.hellos, Registration: registration}
	frame := &pb.AttachRequest{Hellos: []*pb.Hello{hello}}
	for _, one := range a.attempts {
		hello.Running = append(hello.Running, &pb.RunningAttempt{Key: one.key, LastAttemptSequence: uint64(len(one.deltas))})
		if one.outcome != nil {
			frame.Results = append(frame.Results, one.outcome)
		}
	}
	a.send(frame)
}

func (a *agent) received(frame *pb.AttachResponse) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = frame.Sequence
	for _, welcome := range frame.Links {
		for _, key := range welcome.Unknown {
			a.drop(key)
		}
		for _, key := range welcome.Replay {
			if one := a.find(key); one != nil {
				a.send(&pb.AttachRequest{Deltas: one.deltas})
			}
		}
	}
	for _, refusal := range frame.Refusals {
		switch refusal.Error.GetReason() {
		case pb.ErrorReason_ERROR_REASON_STALE_ATTEMPT, pb.ErrorReason_ERROR_REASON_UNKNOWN_ATTEMPT:
			a.drop(refusal.Key)
		default: // an outcome is told again, with the next beat
			log.Printf("refused: %v", refusal.Error.GetMessage())
		}
	}
	for _, offer := range frame.Offers {
		a.offered(offer)
	}
	for _, cancelled := range frame.Cancels {
		a.drop(cancelled.Key)
	}
	for _, key := range frame.Acknowledgements {
		a.drop(key)
	}
	for _, ping := range frame.Pings {
		a.send(&pb.AttachRequest{Pongs: []*pb.Pong{{Link: link, Nonce: ping.Nonce}}})
	}
	if frame.Resync {
		a.hello()
	}
}

// offered begins an attempt, unless it runs or has ended here already: then its outcome is told again.
func (a *agent) offered(offer *pb.Offer) {
	called := name{offer.Tenant, offer.Task.TaskId}
	if known := a.attempts[called]; known != nil {
		if known.key.Attempt >= offer.Attempt {
			if known.outcome != nil {
				a.send(&pb.AttachRequest{Results: []*pb.AttemptResult{known.outcome}})
			}
			return
		}
		known.cancel()
	}
	ctx, cancel := context.WithCancel(context.Background())
	key := &pb.AttemptKey{TaskId: offer.Task.TaskId, Attempt: offer.Attempt, Tenant: offer.Tenant}
	one := &attempt{key: key, cancel: cancel}
	a.attempts[called] = one
	a.send(&pb.AttachRequest{Accepts: []*pb.AttemptAccept{{Link: link, Key: key}}})
	go a.run(ctx, one, offer.Task)
}

// run is the handler: it greets, word by word.
func (a *agent) run(ctx context.Context, one *attempt, task *pb.TaskSpec) {
	words := strings.SplitAfter("Hello, "+cmp.Or(strings.TrimSpace(task.Payload.GetText()), "world")+"!", " ")
	for _, word := range words {
		a.say(ctx, one, word)
		time.Sleep(10 * time.Millisecond) // the work
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil {
		return // nobody wants it any more
	}
	output := &pb.Payload{Content: &pb.Payload_Text{Text: strings.Join(words, "")}}
	one.outcome = &pb.AttemptResult{Link: link, Key: one.key, Outcome: &pb.AttemptResult_Output{Output: output}}
	a.send(&pb.AttachRequest{Results: []*pb.AttemptResult{one.outcome}})
}

// say streams a piece. This agent stays far below the 256 KiB that an attempt may send before it is given credit.
func (a *agent) say(ctx context.Context, one *attempt, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	delta := &pb.AttemptDelta{
		Link: link, Key: one.key, AttemptSequence: uint64(len(one.deltas) + 1),
		Delta: &pb.Delta{Payload: &pb.Payload{Content: &pb.Payload_Text{Text: text}}},
	}
	one.deltas = append(one.deltas, delta)
	a.send(&pb.AttachRequest{Deltas: []*pb.AttemptDelta{delta}})
}

// beat gives a sign of life every 5 s, and tells outcomes again that are not acknowledged.
func (a *agent) beat(ctx context.Context) {
	for ticker := time.NewTicker(resendAfter); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		a.mu.Lock()
		frame := &pb.AttachRequest{Beats: []*pb.LinkBeat{{Link: link, LastFrame: a.seen}}}
		for _, one := range a.attempts {
			if one.outcome != nil {
				frame.Results = append(frame.Results, one.outcome)
			}
		}
		a.send(frame)
		a.mu.Unlock()
	}
}

// goodbye leaves in peace: what still runs is given back.
func (a *agent) goodbye() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.send(&pb.AttachRequest{Goodbyes: []*pb.Goodbye{{Link: link, Release: true}}})
	if a.stream != nil {
		_ = a.stream.CloseSend() // and the server ends the stream
	}
}

// find gives the attempt, if it is known here. a.mu is held.
func (a *agent) find(key *pb.AttemptKey) *attempt {
	one := a.attempts[name{key.Tenant, key.TaskId}]
	if one == nil || one.key.Attempt != key.Attempt {
		return nil
	}
	return one
}

// drop stops an attempt and forgets it. a.mu is held.
func (a *agent) drop(key *pb.AttemptKey) {
	if one := a.find(key); one != nil {
		one.cancel()
		delete(a.attempts, name{key.Tenant, key.TaskId})
	}
}

// send writes a frame, if there is a stream; if it breaks, the next hello says what is missing. a.mu is held.
func (a *agent) send(frame *pb.AttachRequest) {
	if a.stream != nil {
		_ = a.stream.Send(frame)
	}
}

func ptr[T any](value T) *T { return &value }
