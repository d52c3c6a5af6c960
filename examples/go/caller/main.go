// A caller: one answer, and the events of another task as they come.
//
//	go run ./caller Ada
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "example.com/agentreach-go/agentreach/v1"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(name string) error {
	conn, err := grpc.NewClient(
		cmp.Or(os.Getenv("AGENT_REACH_ADDR"), "127.0.0.1:8900"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(9<<20)),
	)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := pb.NewDispatchServiceClient(conn)

	answer, err := client.Dispatch(ctx, &pb.DispatchRequest{Task: task(name), Wait: durationpb.New(10 * time.Second)})
	if err != nil {
		return err
	}
	fmt.Println(answer.State, answer.Result.GetOutput().GetText())

	events, err := client.Run(ctx, &pb.RunRequest{Task: task(name)})
	if err != nil {
		return err
	}
	for {
		frame, err := events.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, event := range frame.Events {
			switch kind := event.Kind.(type) {
			case *pb.TaskEvent_Delta:
				fmt.Print(kind.Delta.Payload.GetText())
			case *pb.TaskEvent_Complete:
				fmt.Println("\n" + kind.Complete.State.String())
			}
		}
	}
}

// task asks the agent beside this program. Give it a TaskId of your own, and sending it twice does no harm.
func task(name string) *pb.TaskSpec {
	return &pb.TaskSpec{
		Selector: &pb.Selector{AgentId: "hello-go"},
		Payload:  &pb.Payload{Content: &pb.Payload_Text{Text: name}},
	}
}
